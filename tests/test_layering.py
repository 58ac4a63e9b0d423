"""Imports point downwards only; tests/test_examples.py runs layers without fairseq."""

import ast
from itertools import chain
from pathlib import Path

import pytest

from tests.pages import ROOT

PACKAGE = ROOT / "fwp_fairseq"

# From top to bottom: a part may import those of the lines below its own.
LAYERS = """
cli
tasks
criterions models
modules
mends
config checkpoint_model compat
checkpoint_content layers
upgrades
contradictions kinds
options
memories
option
ops
feature_maps
_operator
_gpu_check
_extension pads
_constant files numerics sharding tables
text
"""
LINES = [line.split() for line in LAYERS.strip().split("\n")]
WITH_FAIRSEQ = {"_user_dir", *chain(*LINES[:6])}
BELOW = {"__main__": {"cli"}, "__init__": {"_user_dir"}, "_user_dir": set()}
BELOW |= {part: set(chain(*LINES[number + 1 :])) for number, line in enumerate(LINES) for part in line}


def _part(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(file: Path) -> set[str]:
    """Absolute names of every module that the file imports, wherever in it."""
    package = file.relative_to(ROOT).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            found |= {".".join([*base, alias.name]) for alias in node.names}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_arrows_point_downwards(file):
    part, imported = _part(file), _imports(file)
    assert part in BELOW, f"{part} has no place in the layers: add it to LAYERS"
    inside = {name.split(".")[1] for name in imported if name.startswith("fwp_fairseq.")}
    assert inside & BELOW.keys() <= BELOW[part] | {part}
    if part not in WITH_FAIRSEQ:
        assert not any(name.split(".")[0] == "fairseq" for name in imported)
    assert not any(name.split(".")[0] in ("scripts", "tests", "benchmarks") for name in imported)


def test_the_layers_are_shown():
    assert f"```text{LAYERS}```" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "CONTRIBUTING.md has others"


# What each part of scripts/ may import of it; every part may also import itself.
SCRIPTS = {
    "common": set(),
    "data": {"common"},
    "translation": {"common", "data"},
    "experiments": {"common", "data", "translation"},
    "results": {"common", "experiments"},
}


def test_scripts_import_downwards():
    """What experiments share stands below them, and their tables are made without their programs."""
    assert {path.parent.name for path in (ROOT / "scripts").glob("*/__init__.py")} == SCRIPTS.keys()
    for part, allowed in SCRIPTS.items():
        for file in sorted((ROOT / "scripts" / part).rglob("*.py")):
            imported = {name for name in _imports(file) if name.split(".")[0] in ("scripts", "tests", "benchmarks")}
            parts = {name.split(".")[1] if name.startswith("scripts.") else name for name in imported}
            assert parts <= allowed | {part}, f"{file.name} imports {imported}"
            if file.name == "table.py":
                assert not any("recipe" in name for name in imported), f"{file} imports {imported}"


def test_the_naive_implementation_is_independent():
    assert _imports(ROOT / "tests" / "naive.py") == {"math", "numpy"}
