"""Each mask, decay and power of two that short sentences and decoding lack is noticed in their results."""

import ctypes
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fwp_fairseq import ops
from tests.cuda import compiled
from tests.shared import locked

pytestmark = pytest.mark.slow

TOKENS, EPS = 20, 1e-12
WIDTHS = {"sentence": 16, "steps": 64}  # of keys and values
PARTS_OF = {"sentence": {"mask", "decay", "power"}, "steps": {"decay", "power"}}
LIMIT = 1e-2  # of root mean square errors over those of the numbers; whole kernels have a quarter of it
FILES = {
    "sentence": ("maps.cuh", "short.cuh", "short_forward.cuh", "short_backward.cuh"),
    "steps": ("hypothesis.cuh", "dense.cuh", "decode.cuh"),
}
# What can be taken out, each at its own number: a line that masks; a decay, by which products are multiplied; a power.
PARTS = (
    ("mask", r"[^\n]*mask<(?:true|false)>\(\w+\);", r"if (::broken != NUMBER) { \g<0> }"),
    ("decay", r"each_(?:read_)?decay\(\[&\]\(int n, int i, float d\) \{", r"\g<0> if (::broken == NUMBER) d = 1;"),
    ("decay", r"left \*= c\.rule[^;]*;|N \*= keep,[^;]*;", r"if (::broken != NUMBER) { \g<0> }"),
    ("power", r"= power_for\(", r"= ::broken == NUMBER ? 1.f : power_for("),
    ("power", r"= (?:this->)?shared_power\([^()]*(?=\))", r"\g<0>, NUMBER"),
)
SHARED_POWER = {
    "shared_power(float largest, int to)": "shared_power(float largest, int to, int number)",
    "return power_for(largest, to);": "return ::broken == number ? 1.f : power_for(largest, to);",
}


def _broken_copy(folder: Path) -> list[tuple[str, str, str]]:
    """Copies the sources, where ``broken`` is the number of what is taken out; returns (part, file, text) of each."""
    shutil.copytree(compiled.CUDA / "kernels", folder / "cuda" / "kernels")
    shutil.copytree(compiled.CUDA.parent / "common", folder / "common")
    names = []
    for file in sum(FILES.values(), ()):
        path = folder / "cuda" / "kernels" / file
        text = path.read_text()
        for part, pattern, replacement in PARTS:

            def numbered(match: re.Match, file=file, part=part, replacement=replacement) -> str:
                names.append((part, file, match[0].strip()))
                return match.expand(replacement).replace("NUMBER", str(len(names)))

            text = re.sub(pattern, numbered, text)
        for whole, changed in SHARED_POWER.items() if file == "short.cuh" else ():
            assert text.count(whole) == 1
            text = text.replace(whole, changed)
        path.write_text(text)
    return names


def _library() -> tuple[ctypes.CDLL, list[tuple[str, str, str]]]:
    root = compiled.BUILD / "broken"
    with locked(compiled.BUILD / ".broken"):
        shutil.rmtree(root, ignore_errors=True)
        state, head = compiled.headers(), Path(__file__).with_name("head_calls.cpp").read_text()
        state.update(Path(__file__).read_bytes())
        folder = root / state.hexdigest()[:16]  # so that another state is another source
        names = _broken_copy(folder)
        source = folder / "broken_head.cpp"
        kernels = ("short_forward", "short_backward", "decode")
        included = (f'#include "{folder}/cuda/kernels/{name}.cuh"\n' for name in kernels)
        source.write_text('#include <vector>\nextern "C" { int broken; }\n' + "".join(included) + head)
        return compiled.library(source), names


def _inputs(call: str) -> dict[str, Tensor]:
    """Queries three decades apart; other tensors so small that halves do not hold them by themselves.

    Keys are so large that the rule corrects, except those of steps, whose keys have a power of their own.
    """
    torch.manual_seed(1)
    width, size = WIDTHS[call], 1e-7
    q, k = torch.rand(TOKENS, width), (0.3 if call == "sentence" else size) * torch.rand(TOKENS, width)
    v, g = size * torch.randn(TOKENS, width), size * torch.randn(TOKENS, width)
    q = q * 10 ** -(5 + 3 * torch.rand(TOKENS, 1))
    tensors = {name: x.bfloat16() for name, x in {"q": q, "k": k, "v": v}.items()}
    return tensors | {"beta": torch.rand(TOKENS), "alpha": 1 - torch.rand(TOKENS) ** 4, "grad_out": g.bfloat16()}


def _expected(x: dict[str, Tensor], normalize_output: bool) -> list[Tensor]:
    g, *given = (x[name].double() for name in ("grad_out", "q", "k", "v", "beta", "alpha"))
    given = [y[None, :, None].requires_grad_() for y in given]
    out, _ = ops.gated_delta_rule(
        *given, normalize_features=False, normalize_output=normalize_output, eps=EPS, backend="reference"
    )
    return [y.detach()[0, :, 0] for y in (out, *torch.autograd.grad(out, given, g[None, :, None]))]


def _results(library: ctypes.CDLL, call: str, x: dict[str, Tensor], normalize_output: bool) -> list[Tensor]:
    given = [x[name] for name in ("q", "k", "v", "beta", "alpha")]
    out, gradients = torch.full_like(x["v"], float("nan")), [torch.full_like(y, float("nan")) for y in given]
    pointers = [ctypes.c_void_p(y.data_ptr()) for y in (*given, out, x["grad_out"], *gradients)]
    run, width = getattr(library, f"run_{call}"), WIDTHS[call]
    run.restype = ctypes.c_char_p
    tensors = (ctypes.c_void_p * len(pointers))(*pointers)
    error = run(tensors, TOKENS, width, width, normalize_output, ctypes.c_float(EPS))
    assert error is None, error
    return [out, *gradients] if call == "sentence" else [out]


def _error(results: list[Tensor], expected: list[Tensor]) -> float:
    """Returns the largest error of a result, in the mean over its rows, of each over the row's norm."""
    errors = []
    for a, b in zip(results, expected, strict=False):  # steps have no gradients
        a, b = (y.double().view(1 if y.dim() == 1 else TOKENS, -1) for y in (a, b))
        error = (a - b).norm(dim=1) / b.norm(dim=1).clamp(min=1e-3 * b.norm() / len(b) ** 0.5)
        errors.append(error.square().mean().sqrt().nan_to_num(torch.inf).item())
    return max(errors)


@pytest.mark.parametrize("call", FILES)
def test_what_is_taken_out_is_noticed(call):
    library, names = _library()
    numbers = [number for number, (_, file, _) in enumerate(names, 1) if file in FILES[call]]
    x, errors = _inputs(call), dict.fromkeys((0, *numbers), 0.0)
    for normalize_output in (False, True):
        expected = _expected(x, normalize_output)
        for number in errors:
            ctypes.c_int.in_dll(library, "broken").value = number
            error = _error(_results(library, call, x, normalize_output), expected)
            errors[number] = max(errors[number], error)
    assert {names[number - 1][0] for number in numbers} == PARTS_OF[call]
    assert errors.pop(0) < LIMIT / 2
    assert [names[number - 1] for number, error in errors.items() if error < LIMIT] == []
