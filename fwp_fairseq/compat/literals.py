"""fairseq reads some options by ``eval``, those that a checkpoint holds too; here they cannot run code."""

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
        raise ValueError("an operation that is none of numbers or lists")
    return _OPERATORS[type(node.op)](left, right)


def evaluate(text: str):
    """The value of Python's literals, sums and products of numbers, and sums and repetitions of lists:
    ``0.25``, ``(0.9, 0.98)``, ``[(512, 3)] * 20``. Raises ValueError for anything else, without running it, and
    TypeError for what is no text, as ``eval`` does."""
    if not isinstance(text, str):
        raise TypeError(f"expected text, actual {type(text).__name__}")
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError) as error:
        shown = text if len(text) <= 200 else f"{text[:200]}..."
        raise ValueError(f"{shown!r}: expected numbers, text or lists of them ({error})") from None


def replace_eval() -> None:
    """In fairseq's modules the name ``eval`` means :func:`evaluate`; importing fairseq has imported all of them."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fairseq.") and module is not None:
            module.eval = evaluate
