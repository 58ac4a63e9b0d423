"""docs/reliability.md lists what is mended in fairseq: every file with its symptom, its cause and its test."""

import ast
import re
from pathlib import Path

import pytest

from tests.pages import ROOT

FILES = sorted(
    path
    for folder in ("compat", "mends")
    for path in (ROOT / "fwp_fairseq" / folder).glob("*.py")
    if path.name != "__init__.py"
)


def row(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    parts = re.fullmatch(r".*?\n\nSymptom: (.*)\nCause: (.*)\nTest: (\S+)(\n\n.*)?", text, re.DOTALL)
    assert parts, f"{path.name}: expected the lines Symptom, Cause and Test after the first paragraph"
    symptom, cause, test = (" ".join(part.split()) for part in parts.groups()[:3])
    return f"| {symptom} | {cause} | `{path.relative_to(ROOT / 'fwp_fairseq')}` | `{test}` |"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_file_is_in_the_table(path):
    assert row(path) in (ROOT / "docs/reliability.md").read_text(encoding="utf-8").splitlines(), row(path)
