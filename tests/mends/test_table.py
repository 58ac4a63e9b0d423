"""docs/reliability.md has one row for each file that mends fairseq: with its symptom, its cause and its test."""

import re

import pytest

from tests.pages import ROOT

PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
FILES = sorted(
    f"{folder}/{path.name}"
    for folder in ("compat", "mends")
    for path in (ROOT / "fwp_fairseq" / folder).glob("*.py")
    if path.name != "__init__.py"
)


@pytest.mark.parametrize("file", FILES)
def test_file_is_in_the_table(file):
    rows = re.findall(rf"^\| .+ \| .+ \| `{file}` \| `tests/\S+::test_\S+` \|$", PAGE, re.MULTILINE)
    assert len(rows) == 1, rows


def test_every_row_has_a_file():
    assert sorted(re.findall(r"\| `((?:compat|mends)/\S+)` \| `tests/", PAGE)) == FILES
