"""Reads English and German manuals of Debian 12: manual pages, and books and desktop help as HTML and Mallard.

The two pages of a document are aligned by structure: a section of a page with the paragraphs of the same kinds in the
same order as the other page's. Other sections are left out, as are paragraphs that nobody has translated.
"""

import gzip
import re
from collections.abc import Callable, Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from .corpus import Paragraph


class Part(NamedTuple):
    """A heading or paragraph of a page: what kind of one it is, and its text on one line."""

    kind: str
    text: str


HEADING = "heading"
_ELEMENTS = {f"h{level}": HEADING for level in range(1, 7)} | {"title": HEADING, "p": "p", "dt": "dt"}


class _Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.parts: list[Part] = []
        self.open: str | None = None
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag in _ELEMENTS:
            self.close_part()
            self.open = _ELEMENTS[tag]

    def handle_endtag(self, tag):
        if tag in _ELEMENTS:
            self.close_part()

    def handle_data(self, data):
        if self.open:
            self.text += data

    def close_part(self) -> None:
        if self.open and self.text.strip():
            self.parts.append(Part(self.open, " ".join(self.text.split())))
        self.open, self.text = None, ""


def marked_up(path: Path) -> list[Part]:
    """Returns the parts of a page in HTML or Mallard."""
    return _Page(path.read_text(encoding="utf-8")).parts


_FONTS = re.compile(r"\\f(\(..|\[[^\]]*\]|.)|\\s[-+]?\d|\\[&|^/,%:)]|\\\*\(..")
_GLYPHS = {
    "aq": "'", "dq": '"', "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "Fo": "«", "Fc": "»", "Bq": "„", "em": "—",
    "en": "–", "hy": "-", "ti": "~", "ha": "^", "ga": "`", "rs": "\\", "bu": "•", "co": "©", "mc": "µ", "sq": "'",
}  # fmt: skip
_BREAKS = {"PP", "P", "LP", "IP", "TP", "TQ", "HP", "RS", "RE", "sp", "br", "Pp", "Bl", "El", "in", "ne"}
_FONT_LINES = {"B", "I", "SM", "SB", "R"}
_ALTERNATING = {"BR", "RB", "BI", "IB", "IR", "RI"}
_LITERAL = {"nf": "fi", "EX": "EE", "TS": "TE", "de": "."}
_IGNORED = {
    "TH",
    "ad",
    "nh",
    "hy",
    "ie",
    "el",
    "if",
    "ft",
    "ds",
    "nr",
    "tr",
    "ta",
    "PD",
    "na",
    "so",
    "UR",
    "UE",
    "MT",
    "ME",
}


def plain(text: str) -> str:
    """Returns text of a manual page without troff's escapes."""
    text = re.sub(
        r"\\\((..)|\\\[([^\]]*)\]", lambda escape: _GLYPHS.get(escape[1] or escape[2], ""), _FONTS.sub("", text)
    )
    text = re.sub(r"\\[ ~0]", " ", text).replace("\\-", "-").replace("\\e", "\\").replace("\\'", "'")
    return " ".join(text.split())


def _arguments(line: str) -> list[str]:
    return [quoted.replace('""', '"') or word for quoted, word in re.findall(r'"((?:[^"]|"")*)"|((?:\\.|\S)+)', line)]


class _Manual:
    """Collects the parts of a manual page; paragraphs with macros that are not known are left empty."""

    def __init__(self, lines: Iterable[str]):
        self.parts: list[Part] = []
        self.kind, self.words, self.is_known = "p", [], True
        self.until: str | None = None
        for line in lines:
            self.read(line)
        self.end("p")

    def end(self, kind: str) -> None:
        """Ends the paragraph, and begins one of this kind."""
        if self.words:
            self.parts.append(Part(self.kind, plain(" ".join(self.words)) if self.is_known else ""))
        self.kind, self.words, self.is_known = kind, [], True

    def read(self, line: str) -> None:
        match = re.match(r"[.']\s*([A-Za-z]+|\\\"|\.)\s*(.*)", line)
        macro, rest = (match[1], match[2]) if match else ("", line)
        if self.until:
            self.until = None if macro == self.until else self.until
        elif macro in _LITERAL:
            self.end("p")
            self.until = _LITERAL[macro]
        elif macro in ("SH", "SS", "Sh", "Ss"):
            self.end(HEADING)
            if rest:
                self.words = _arguments(rest)
                self.end("p")
        elif macro in _BREAKS or not line.strip():
            self.end("tag" if macro in ("TP", "TQ") else "item" if macro in ("IP", "HP") else "p")
        elif macro in _FONT_LINES or macro in _ALTERNATING or not macro:
            words = _arguments(rest) if macro else [rest]
            self.words.append(("" if macro in _ALTERNATING else " ").join(words))
            if self.kind in ("tag", HEADING):
                self.end("p")
        elif macro not in _IGNORED and macro != '\\"':
            self.words.append("")
            self.is_known = False


def manual_page(path: Path) -> list[Part]:
    """Returns the parts of a compressed manual page."""
    return _Manual(gzip.decompress(path.read_bytes()).decode("utf-8", "replace").splitlines()).parts


def _sections(parts: Iterable[Part]) -> list[list[Part]]:
    sections: list[list[Part]] = [[]]
    for part in parts:
        if part.kind == HEADING:
            sections.append([])
        sections[-1].append(part)
    return sections


def aligned(english: list[Part], german: list[Part]) -> Iterator[tuple[str, str]]:
    """Yields the pairs of texts of the sections that have the same structure.

    The German page may have more sections at its end, such as the names of its translators.
    """
    theirs, ours = _sections(english), _sections(german)
    if len(theirs) > len(ours):
        return
    for section, other in zip(theirs, ours, strict=False):
        if [part.kind for part in section] == [part.kind for part in other]:
            for a, b in zip(section, other, strict=True):
                if a.text != b.text and _is_text(a.text) and _is_text(b.text):
                    yield a.text, b.text


def _is_text(text: str) -> bool:
    return any(character.isalpha() for character in text)


class Manual(NamedTuple):
    """Pages of a package: their name, and how the paths of the English and of the German ones differ.

    Attributes:
        name: begins the names of its documents.
        english: a pattern of paths in the folder of all packages; what its one star stands for names the page.
        german: the path of the German page, with a star in its place.
        read: of a path.
    """

    name: str
    english: str
    german: str
    read: Callable[[Path], list[Part]] = marked_up


_DOC = "usr/share/doc"
MANUALS = (
    *(
        Manual(f"man{number}", f"usr/share/man/man{number}/*.gz", f"usr/share/man/de/man{number}/*.gz", manual_page)
        for number in range(1, 9)
    ),
    Manual("gnome-help", "usr/share/help/C/gnome-help/*.page", "usr/share/help/de/gnome-help/*.page"),
    Manual(
        "system-admin-guide",
        "usr/share/help/C/system-admin-guide/*.page",
        "usr/share/help/de/system-admin-guide/*.page",
    ),
    Manual("debian-handbook", f"{_DOC}/debian-handbook/html/en-US/*.html", f"{_DOC}/debian-handbook/html/de-DE/*.html"),
    Manual("debian-reference", "usr/share/debian-reference/*.en.html", "usr/share/debian-reference/*.de.html"),
    Manual("developers-reference", "usr/share/developers-reference/*.html", "usr/share/developers-reference/de/*.html"),
    Manual(
        "installation-guide",
        f"{_DOC}/installation-guide-amd64/en/*.html",
        f"{_DOC}/installation-guide-amd64/de/*.html",
    ),
    Manual("maint-guide", f"{_DOC}/maint-guide/html/*.en.html", f"{_DOC}/maint-guide-de/html/*.de.html"),
    Manual("debian-faq", f"{_DOC}/debian/FAQ/*.en.html", f"{_DOC}/debian/FAQ/de/*.de.html"),
    Manual("apt", f"{_DOC}/apt-doc/*.html", f"{_DOC}/apt-doc/*.de.html"),
    Manual("debian-edu", f"{_DOC}/debian-edu-doc-en/*.html", f"{_DOC}/debian-edu-doc-de/*.html"),
    *(
        Manual(
            f"gnucash-{book}",
            f"{_DOC}/gnucash-docs/gnucash-{book}-en/*.html",
            f"{_DOC}/gnucash-docs/gnucash-{book}-de/*.html",
        )
        for book in ("guide", "help")
    ),
    Manual("lilypond", f"{_DOC}/lilypond/html/Documentation/*.html", f"{_DOC}/lilypond/html/Documentation/*.de.html"),
    Manual(
        "ubuntu-packaging",
        f"{_DOC}/ubuntu-packaging-guide-html/*.html",
        f"{_DOC}/ubuntu-packaging-guide-html-de/*.html",
    ),
)


def manual_paragraphs(folder: Path, manuals: Iterable[Manual] = MANUALS) -> Iterator[Paragraph]:
    """Yields the paragraphs of all pages that there are in both languages; a page with several names comes once."""
    known = set()
    for manual in manuals:
        before, after = manual.english.split("*")
        for path in sorted(folder.glob(manual.english)):
            name = str(path.relative_to(folder))[len(before) : -len(after)]
            other = folder / manual.german.replace("*", name)
            if not other.is_file():
                continue
            pairs = tuple(aligned(manual.read(path), manual.read(other)))
            if pairs not in known:
                known.add(pairs)
                yield from (Paragraph(f"{manual.name}/{name}", *texts) for texts in pairs)
