"""The ways of a query and of a record name files that exist, and functions that stand in them."""

import ast
import re

import pytest

from tests.pages import ROOT

QUERY, RECORD = ((ROOT / page).read_text(encoding="utf-8") for page in ("docs/a_querys_way.md", "scripts/README.md"))
TEXT = QUERY + RECORD
STATIONS, OF_A_RECORD = (re.findall(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", page, re.M) for page in (QUERY, RECORD))
# Elsewhere on the page a name stands before its file: "`NAME` of `FILE`" or "in".
ASIDE = re.findall(r"`([A-Za-z_.:]+)`(?: of| in| \()\s*`([\w./]+\.(?:py|h|cpp))`", TEXT)


def defined(file: str) -> set[str]:
    """The functions, classes and methods (Class.method, or Class::method in C++) of a file, and variables in Python."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if not file.endswith(".py"):
        structs = re.findall(r"^\s*(?:template <[^>]*> )?(?:struct|class) (\w+)", text, re.M)
        functions = re.findall(r"\b(\w+)\([^;{}]*\)[^;{}]*\{", text)
        return {*structs, *functions, *(f"{struct}::{name}" for struct in structs for name in functions)}
    tree = ast.parse(text)
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return found | {target.id for target in targets if isinstance(target, ast.Name)}


def test_the_pages_have_stations():
    assert len(STATIONS) == 8 and STATIONS[-1] == ("csrc/cpu/head.h", "Head::forward") and len(ASIDE) >= 6
    assert len(OF_A_RECORD) == 6 and OF_A_RECORD[-1] == ("fwp_fairseq/tables/table.py", "grid")


@pytest.mark.parametrize("file, name", [*STATIONS, *OF_A_RECORD, *((file, name) for name, file in ASIDE)])
def test_it_stands_there(file, name):
    assert name in defined(file)


def test_every_file_exists():
    files = set(re.findall(r"`([\w./]+/[\w./]+\.(?:py|h|cpp|md))`", TEXT))
    assert len(files) > 12 and [file for file in files if not (ROOT / file).is_file()] == []
