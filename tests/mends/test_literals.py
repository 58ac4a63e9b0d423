"""What fairseq reads by ``eval`` is read without running anything."""

import ast
import importlib
import sys
from pathlib import Path

import fairseq
import pytest
from fairseq import utils

import fwp_fairseq.models  # noqa: F401  (its effects are what is tested)
from fwp_fairseq.mends import literals

VALUES = [
    "-2",
    "(0.9, 0.98)",
    "100,200",
    "[1,2]",
    "None",
    "'gelu'",
    "{'beam': 4, 'sizes': [1, 2]}",
    "1/4 + 2*3 - 1",
    "[(512, 10, 5)] + [(512, 3, 2)] * 4 + [(512,2,2)] + [(512,2,2)]",
]
REFUSED = [
    "__import__('os').system('true')",
    "print",
    "().__class__.__base__.__subclasses__()",
    "[x for x in (1, 2)]",
    "9 ** 9 ** 9",
    "[0] * 1000000000",
    "1 / 0",
    "(" * 10_000,
    "",
    "1 +",
]


@pytest.mark.parametrize("text", VALUES)
def test_values_are_those_of_eval(text):
    assert literals.evaluate(text) == eval(text)


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_anything_else_is_refused_by_name(text):
    with pytest.raises(ValueError, match="expected numbers, text or lists"):
        literals.evaluate(text)


def test_what_is_no_text_is_a_type_error():
    with pytest.raises(TypeError, match="float"):
        literals.evaluate(0.25)
    assert utils.eval_bool(True, default="as with eval") == "as with eval"


@pytest.mark.parametrize(
    ("given", "kind", "values"),
    [("0.25", float, [0.25]), ("100,200", int, [100, 200]), (2, float, [2.0]), (None, int, None)],
)
def test_lists_of_options(given, kind, values):
    assert utils.eval_str_list(given, kind) == values


def _evaluates(path: Path) -> bool:
    calls = (node.func for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Name) and function.id == "eval" for function in calls)


def test_every_module_of_fairseq_that_evaluates_is_covered():
    folder = Path(fairseq.__file__).parent
    paths = [
        path.relative_to(folder) for path in folder.rglob("*.py") if path.relative_to(folder).parts[0] != "examples"
    ]
    found = [path for path in paths if "eval(" in (folder / path).read_text("utf-8") and _evaluates(folder / path)]
    assert len(found) > 10
    for path in found:
        name = ".".join(("fairseq", *path.with_suffix("").parts))
        assert name in sys.modules, f"{name} is not imported with fairseq"
        assert importlib.import_module(name).eval is literals.evaluate, name
