"""Pages name files, functions and tests that exist."""

import re

import pytest

from tests.pages import PAGES, ROOT

TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
WAYS = {page: TEXTS[page] for page in ("docs/a_querys_way.md", "scripts/README.md")}
QUERY, RECORD = (re.findall(r"^\|(?: \d+ \|)? `([^`]+)` \| `([^`]+)` \|", text, re.M) for text in WAYS.values())
# Elsewhere a name stands before its file: "`NAME` of `FILE`", "in" or "(".
ASIDE = [
    (page, *pair)
    for page in PAGES
    for pair in re.findall(r"`([A-Za-z_.:]+)`(?: of| in| \()[\s*]*`([\w./]+\.(?:py|h|cuh|cpp))`", TEXTS[page])
]


def test_the_ways_have_stations():
    assert QUERY[7] == ("csrc/cpu/head.h", "Head::forward") and len(ASIDE) >= 30
    assert len(QUERY) == 8 + 6 and QUERY[-1] == ("csrc/cpu/decode.h", "Decoder::step")
    assert len(RECORD) == 6 and RECORD[-1] == ("fwp_fairseq/tables/table.py", "grid")


@pytest.mark.parametrize("page, name, file", [*((None, name, file) for file, name in QUERY + RECORD), *ASIDE])
def test_a_name_is_defined_in_its_file(page, name, file):
    here = ROOT if page is None else (ROOT / page).parent
    folders = ROOT, here, here / "kernels", ROOT / "fwp_fairseq"
    text = next(path for folder in folders if (path := folder / file).is_file()).read_text(encoding="utf-8")
    for part in re.split(r"\.|::", name):
        python = rf"^\s*(def|class) {part}\b|^{part}\b.* = "
        cpp = rf"\b(struct|class) {part}\b|\b{part}\([^;{{}}]*\)[^;{{}}]*{{"
        assert re.search(python if file.endswith(".py") else cpp, text, re.M), part


@pytest.mark.parametrize("page", WAYS)
def test_every_file_of_a_way_exists(page):
    files = set(re.findall(r"`([\w./]+/[\w./]+\.(?:py|h|cpp|md))`", WAYS[page]))
    assert len(files) > 5 and [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page):
    for file, name, value in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?(?:\[([\w-]+)\])?", TEXTS[page]):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in text, f"{file} has no {name}"
        assert not value or f'"{value}"' in text, f"{name} has no case {value}"


def test_what_is_to_be_extended_exists():
    """Where docs/extending.md says "name", it means any map, such as favor; softplus is its example, like relu."""
    text = re.sub(r"\bname\b", "favor", TEXTS["docs/extending.md"]).replace("softplus.py", "relu.py")
    quoted = {*re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)}
    paths = {word for word in quoted if re.fullmatch(r"[\w./]+(/|\.(py|h|cuh|cpp|md))", word)}
    for arguments in re.findall(r"(?:-m pytest|scripts/test\.sh) (.*)", text):
        paths |= {*re.findall(r"[\w./]+/[\w./]*", arguments)}
    names = {word for word in quoted - paths if re.fullmatch(r"_?[A-Za-z][\w.]{2,}", word)}
    assert len(paths) > 30 and len(names) > 30
    folders = [ROOT / folder for folder in ("fwp_fairseq", "csrc", "tests", "scripts")]
    files = [path for folder in folders for path in folder.rglob("*.*")]
    sources = [path.read_text() for path in files if path.suffix in (".py", ".h", ".cuh", ".cpp", ".cu")]
    known = {*re.findall(r"\w+", "\n".join(sources))}
    ends = "\n".join(f"{path}\n" for path in files)
    assert [path for path in paths if not (ROOT / path).exists() and f"/{path}\n" not in ends] == []
    assert [name for name in names if not {*name.split(".")} <= known] == []
