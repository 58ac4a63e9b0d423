"""Extracts English-German documents from Debian 12: the help of LibreOffice or of GIMP, or manuals (manuals.py).

Writes train, valid and test with the endings .en.gz, .de.gz and .doc.gz: a paragraph a line, and the name of its
document. README.md has the commands.
"""

import gzip
import hashlib
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path

from fwp_fairseq.files import write_atomically
from scripts.common import program
from scripts.common.arguments import Parser
from scripts.common.errors import RecipeError

from .corpus import Paragraph, without_tests
from .manuals import manual_paragraphs

# Packages by file and checksum, which `apt-get download` fetches.
DEBS = {
    "libreoffice": {
        "libreoffice-help-en-us_4%3a7.4.7-1+deb12u14_all.deb": (
            "8faa840285734d6cfe1ed25537b48f07e74bd6412e3917bf8e5f8a653f7b3712"
        ),
        "libreoffice-help-de_4%3a7.4.7-1+deb12u14_all.deb": (
            "00490b63c509ac96f7f212d6a6e40452d3e0d1f97ccf4b824dd5ec4c01e8277f"
        ),
    },
    "gimp": {
        "gimp-help-en_2.10.34-2_all.deb": "a2deec76763aaf2fcdd197bac0736cdcb0770ba993d48d233329e1c92b0bfe36",
        "gimp-help-de_2.10.34-2_all.deb": "06d1f51828e0c68d373bbdd0d34c695e6405062143cd612407cd0fcf9531c199",
    },
}
# Those of the manuals are many; the file is of sha256sum's form.
_PINS = Path(__file__).with_name("manuals.sha256").read_text(encoding="utf-8").splitlines()
DEBS["manuals"] = {name: checksum for checksum, name in map(str.split, _PINS)}
# The folders of the pages of help.
PAGES = {
    "libreoffice": ("usr/share/libreoffice/help/en-US", "usr/share/libreoffice/help/de"),
    "gimp": ("usr/share/gimp/2.0/help/en", "usr/share/gimp/2.0/help/de"),
}
_ELEMENTS = {"p", *(f"h{level}" for level in range(1, 7))}


class _Page(HTMLParser):
    """Collects a page's paragraphs by their id and the number among those of this id, or by their number alone."""

    def __init__(self, text: str, by_id: bool):
        super().__init__()
        self.by_id = by_id
        self.paragraphs: dict[tuple[str, int], str] = {}
        self.open: tuple[str, int] | None = None
        self.seen: Counter[str] = Counter()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag in _ELEMENTS:
            name = (dict(attrs).get("id") or "") if self.by_id else ""
            self.open = (name, self.seen[name]) if not self.by_id or name.startswith(("par_id", "hd_id")) else None
            self.seen[name] += 1

    def handle_endtag(self, tag):
        if tag in _ELEMENTS:
            self.open = None

    def handle_data(self, data):
        if self.open:
            self.paragraphs[self.open] = self.paragraphs.get(self.open, "") + data


def help_pages(english: Path, german: Path, by_id: bool) -> Iterator[Paragraph]:
    """Yields the paragraphs of the pages in two folders that differ in the two languages.

    ``by_id``: paragraphs have the same ids in both; else pages have as many, in the same order, or are left out.
    """
    for path in sorted(english.rglob("*.html")):
        other = german / path.relative_to(english)
        if not other.is_file():
            continue
        pages = [_Page(page.read_text(encoding="utf-8"), by_id) for page in (path, other)]
        en, de = (page.paragraphs for page in pages)
        if not by_id and pages[0].seen != pages[1].seen:
            continue
        for key in en:
            texts = [" ".join(page.get(key, "").split()) for page in (en, de)]
            if all(texts) and texts[0] != texts[1]:
                yield Paragraph(f"help/{path.relative_to(english)}", *texts)


def unpacked(source: str, debs: Path) -> Iterator[Paragraph]:
    """Yields the paragraphs of the packages of a source in a folder. Raises RecipeError for other versions of them."""
    with tempfile.TemporaryDirectory() as folder:
        for name, expected in DEBS[source].items():
            if not (debs / name).is_file():
                raise RecipeError(f"{debs / name}: no such file; this version of the package is needed")
            if (actual := hashlib.sha256((debs / name).read_bytes()).hexdigest()) != expected:
                raise RecipeError(f"{debs / name}: sha256: expected {expected}, actual {actual}")
            subprocess.run(["dpkg-deb", "-x", debs / name, folder], check=True)
        if source == "manuals":
            yield from manual_paragraphs(Path(folder))
        else:
            yield from help_pages(*(Path(folder, pages) for pages in PAGES[source]), by_id=source == "libreoffice")


def split(paragraphs: Iterable[Paragraph]) -> dict[str, list[Paragraph]]:
    """Draws documents for valid (2 %) and test (3 %) by a hash of their names; train loses what stands in these."""
    parts: dict[str, list[Paragraph]] = {"train": [], "valid": [], "test": []}
    for paragraph in paragraphs:
        drawn = int(hashlib.sha256(paragraph.document.encode()).hexdigest()[:8], 16) % 100
        parts["valid" if drawn < 2 else "test" if drawn < 5 else "train"].append(paragraph)
    return parts | {"train": without_tests(parts)}


def write(parts: dict[str, list[Paragraph]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, paragraphs in parts.items():
        for kind, field in (("doc", "document"), ("en", "en"), ("de", "de")):
            text = "".join(f"{getattr(paragraph, field)}\n" for paragraph in paragraphs)
            write_atomically(folder / f"{part}.{kind}.gz", gzip.compress(text.encode(), mtime=0))


def main(argv: list[str]) -> int:
    parser = Parser("python -m scripts.experiments.documents.extract", __doc__, "", "--debs DIR --to DIR [OPTIONS]")
    add = parser.add_argument
    add("--help-of", choices=list(DEBS), default="libreoffice", help="or of which manuals (default: %(default)s)")
    add("--debs", type=Path, required=True, metavar="DIR", help="folder of the .deb files")
    add("--to", type=Path, required=True, metavar="DIR", help="folder of the documents")
    options = parser.parse_args(argv)
    options.to, options.debs = program.from_root(options.to), program.from_root(options.debs)

    def work() -> None:
        parts = split(unpacked(options.help_of, options.debs))
        write(parts, options.to)
        for part, paragraphs in parts.items():
            documents, words = {p.document for p in paragraphs}, sum(len(p.en.split()) for p in paragraphs)
            print(f"{part}: {len(documents):,} documents, {len(paragraphs):,} paragraphs, {words:,} English words")

    return program.run(work, "begins again")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
