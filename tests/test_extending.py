"""docs/extending.md names files and names that exist, and commands of tests that do."""

import re

import pytest

from tests.pages import ROOT

TEXT = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
# Where the page says "name", it means any map; favor is one that has every file. The map softplus is its example, and
# relu is like it.
QUOTED = [
    re.sub(r"\bname\b", "favor", quoted).replace("softplus.py", "relu.py")
    for quoted in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", TEXT)
]
PATHS = sorted(
    {quoted for quoted in QUOTED if re.fullmatch(r"[\w./]+(/|\.(py|h|cuh|cpp|md))", quoted)}
    | set(re.findall(r"[\w./]+/[\w./]*", " ".join(re.findall(r"(?:-m pytest|scripts/test\.sh) (.*)", TEXT))))
)
NAMES = sorted({quoted for quoted in QUOTED if re.fullmatch(r"_?[A-Za-z][\w.]{2,}", quoted) and quoted not in PATHS})


@pytest.fixture(scope="module")
def sources():
    """Every source by its path; some of them the page names by the end of it."""
    found = [path for folder in ("fwp_fairseq", "csrc", "tests", "scripts") for path in (ROOT / folder).rglob("*.*")]
    kinds = {".py", ".h", ".cuh", ".cpp", ".cu"}
    return {str(path.relative_to(ROOT)): path.read_text() for path in found if path.suffix in kinds}


def test_paths(sources):
    assert len(PATHS) > 30
    missing = [path for path in PATHS if not (ROOT / path).exists()]
    assert [path for path in missing if not any(source.endswith(f"/{path}") for source in sources)] == []


def test_names(sources):
    assert len(NAMES) > 30
    words = set(re.findall(r"\w+", "\n".join(sources.values())))
    assert [name for name in NAMES if not set(name.split(".")) <= words] == []
