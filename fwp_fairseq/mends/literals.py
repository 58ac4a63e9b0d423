"""Replaces the ``eval`` by which fairseq reads some options.

fairseq parses lists and numbers in options with ``eval``, which runs whatever code they contain.
"""

import ast
import operator
import sys

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_LONGEST = 10_000


def _value(node: ast.expr):
    if isinstance(node, ast.List | ast.Tuple):
        return (list if isinstance(node, ast.List) else tuple)(_value(element) for element in node.elts)
    if not isinstance(node, ast.BinOp):
        return ast.literal_eval(node)
    left, right = _value(node.left), _value(node.right)
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    joined = isinstance(node.op, ast.Add) and type(left) is type(right) and isinstance(left, list | tuple)
    repeated = isinstance(node.op, ast.Mult) and isinstance(left, list | tuple) and isinstance(right, int)
    if repeated and len(left) * right > _LONGEST:
        raise ValueError(f"more than {_LONGEST} elements")
    if type(node.op) not in _OPERATORS or not (numbers or joined or repeated):
        raise ValueError("not an operation on numbers or lists")
    return _OPERATORS[type(node.op)](left, right)


def evaluate(text: str):
    """Evaluates Python's literals, arithmetic on numbers, and sums and repetitions of lists.

    Examples: ``0.25``, ``(0.9, 0.98)``, ``[(512, 3)] * 20``. Raises ValueError for any other text, without running it,
    and TypeError, as ``eval`` does, if ``text`` is not a string.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected text, actual {type(text).__name__}")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError) as error:
        shown = text if len(text) <= 200 else f"{text[:200]}..."
        raise ValueError(f"{shown!r}: expected numbers, text or lists of them ({error})") from None


# In every module of fairseq that has been loaded, the name ``eval`` means `evaluate`.
for _name, _module in list(sys.modules.items()):
    if _name.startswith("fairseq.") and _module is not None:
        _module.eval = evaluate
