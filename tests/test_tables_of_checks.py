"""Every row of the tables of checks in docs/ names a test that exists and is not skipped on a CPU."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"reliability": 40, "distributed": 9}  # and how many rows its table has more than
ROWS = {
    page: re.findall(r"^\|(?!---).*\|$", (ROOT / f"docs/{page}.md").read_text(encoding="utf-8"), re.MULTILINE)[1:]
    for page in PAGES
}
# Conditions that hold on no Linux machine with the compiled kernels, which .ci/run requires.
ELSEWHERE = ("sys.platform != 'linux'",)


def cell(row: str) -> tuple[str, str, str]:
    """Path, function and parameters of the test that a row ends with."""
    found = re.search(r"`(tests/[\w/]+\.py)::(\w+)(?:\[(.+)\])?` \|$", row)
    assert found, f"no test in the row {row}"
    return found[1], found[2], found[3] or ""


def decorators(path: str, name: str) -> str:
    """What is written above the test, and the markers of its whole file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert len(functions) == 1, f"{path} has no test {name}"
    assert not re.search(r"pytest\.(skip|xfail)\(", ast.unparse(functions[0])), f"{path}::{name} may skip itself"
    of_file = [
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return "\n".join(map(ast.unparse, [*of_file, *functions[0].decorator_list]))


@pytest.mark.parametrize(
    "row", [row for rows in ROWS.values() for row in rows], ids=lambda row: row.split("|")[1].strip()
)
def test_row_names_a_test_that_runs_on_a_cpu(row, request):
    path, name, parameters = cell(row)
    marks = decorators(path, name)
    for condition in ELSEWHERE:
        marks = marks.replace(f"mark.skipif({condition}", "")
    assert not re.search(r"mark\.(skip|skipif|xfail)\b|needs\('cuda'\)", marks), marks
    assert not parameters or repr(parameters) in marks, f"{path}::{name} has no parameters {parameters}"
    # What pytest itself has collected, if it was asked for that test too.
    collected = {item.nodeid for item in request.session.items if item.nodeid.startswith(f"{path}::{name}")}
    wanted = f"{path}::{name}" + (f"[{parameters}]" if parameters else "")
    assert not collected or any(nodeid.startswith(wanted) for nodeid in collected), f"{wanted} is not among {collected}"


@pytest.mark.parametrize("page", PAGES)
def test_table_is_whole(page):
    assert len(ROWS[page]) > PAGES[page] and len(set(ROWS[page])) == len(ROWS[page])
