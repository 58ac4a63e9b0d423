"""Each mask, decay, power of two and state that kernels of sentences and steps lack is noticed in their results."""

import ctypes
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fwp_fairseq import ops
from fwp_fairseq.ops.call import GATES, RULES
from tests.cuda import compiled
from tests.maps import build_map
from tests.shared import locked

pytestmark = pytest.mark.slow

LIMIT = 1e-2  # of root mean square errors over those of the numbers; whole kernels have less than half of it


class Case(NamedTuple):
    normalize_output: bool
    rule: str = "gated_delta"
    nu: int = 0  # of DPFP, whose features are normalised; 0: rows are features
    eps: float = 1e-12


class Kind(NamedTuple):
    """A kind of calls: what it can lack, the files that have it, and the cases in one of which each is noticed."""

    parts: set[str]
    files: tuple[str, ...]
    tokens: int
    widths: tuple[int, int]  # of keys, of values
    cases: tuple[Case, ...]


OUTPUTS = (Case(False), Case(True))
KINDS = {
    "sentence": Kind(
        {"mask", "decay", "power"}, ("maps.cuh", "short.cuh", "short_forward.cuh", "short_backward.cuh"),
        20, (16, 16), OUTPUTS,
    ),
    "chunks": Kind(
        {"mask", "decay", "power", "state"},
        ("mma.cuh", "decay.cuh", "tokens.cuh", "rows.cuh", "forward.cuh", "backward.cuh"),
        136, (16, 72),
        (*OUTPUTS, Case(True, "delta"), Case(True, "gated"), Case(False, nu=2, eps=1e-6), Case(False, nu=2)),
    ),
    "steps": Kind({"decay", "power"}, ("hypothesis.cuh", "dense.cuh", "decode.cuh"), 20, (64, 64), OUTPUTS),
}  # fmt: skip
KERNELS = ("short_forward.cuh", "short_backward.cuh", "decode.cuh")
INSTANCES = ("rows.cu", "forward.cu", "backward.cu")  # which launches.h starts
# What can be taken out, each at its own number: a line that masks; a decay, by which products are multiplied; a power.
PARTS = (
    ("mask", r"[^\n]*mask<(?:true|false)>\([\w.]+\);", r"if (::broken != NUMBER) { \g<0> }"),
    ("decay", r"each_(?:read_)?decay\((?:(?:x\.)?D, )?\[&\]\([^)]*\) \{", r"\g<0> if (::broken == NUMBER) d = 1;"),
    (
        "decay",
        r"(?<=\* |= )(?:\(DECAYS \? x\.D\[n\]\[i\] : 1\.f\)|x\.D\[n\]\[i\])",
        r"(::broken == NUMBER ? 1.f : \g<0>)",
    ),
    ("decay", r"left \*= keep(?:_of_stored|\[t\])[^;]*;|N \*= keep,[^;]*;", r"if (::broken != NUMBER) { \g<0> }"),
    ("power", r"= power_for\(", r"= ::broken == NUMBER ? 1.f : power_for("),
    ("power", r"= (?:this->)?shared_power\([^()]*(?=\))", r"\g<0>, NUMBER"),
)
_INNER = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*"  # of parentheses
# The same of long sentences, and what is carried from chunk to chunk. T needs no power: its largest numbers are near 1.
PARTS_OF_CHUNKS = (
    ("mask", r"(?<== )j(?: \+ 1)? < t(?:oken)?(?= \?)", r"(::broken == NUMBER || \g<0>)"),
    ("mask", r"(?<=return )c\.causal && key > query", r"::broken != NUMBER && \g<0>"),
    ("decay", rf"(?<!float )\b(?:decay|left)\({_INNER}\)", r"(::broken == NUMBER ? 1.f : \g<0>)"),
    ("power", r"\bput\((?!inverse)(?:s\.\w|\w+\([^()]*\)(?:\.from\([^()]*\))?), [^;]*(?=\);)", r"\g<0>, NUMBER"),
    ("power", r"\bround\(\w+, [\w.]+(?=\);)", r"\g<0>, NUMBER"),
    ("power", r"(?<!return )\bpower_of_\w+\((?:most|all)(?: \* by)?\)", r"(::broken == NUMBER ? 1.f : \g<0>)"),
    ("power", r"\b(?:at|with)\.powers\[(?:block\(row, column\)|r / 16 [^]]*)\]", r"(::broken == NUMBER ? 1.f : \g<0>)"),
    ("power", r"(?<=\) |  )scale\(sum, n, units[^;]*;", r"if (::broken != NUMBER) { \g<0> }"),
    ("state", r"(?<!bool )\bhas_(?:state|gradient)\([^()]*\)", r"(::broken != NUMBER && \g<0>)"),
    ("state", r"(?<=carry\(w, x, f, )[^;]*(?=\);)", r"::broken == NUMBER ? 0.f : \g<0>"),
)
# Functions of which each call has its number.
NUMBERED = {
    "short.cuh": {
        "shared_power(float largest, int to)": "shared_power(float largest, int to, int number)",
        "return power_for(largest, to);": "return ::broken == number ? 1.f : power_for(largest, to);",
    },
    "mma.cuh": {
        "& to, Strip<N>& x, int columns) const": "& to, Strip<N>& x, int columns, int number = 0) const",
        " tile_ld);\n  }\n": " tile_ld, number);\n  }\n",
        " to.ld);\n  }\n": " to.ld, number);\n  }\n",
        "uint16_t* first, int ld) const": "uint16_t* first, int ld, int number) const",
        "void round(Strip<N>& x, int columns) const": "void round(Strip<N>& x, int columns, int number) const",
        "power = power_of(x, columns)": "power = number && ::broken == number ? 1.f : power_of(x, columns)",
    },
}


def _broken_copy(folder: Path) -> list[tuple[str, str, str]]:
    """Copies the sources, where ``broken`` is the number of what is taken out; returns (part, file, text) of each."""
    shutil.copytree(compiled.CUDA / "kernels", folder / "cuda" / "kernels")
    shutil.copy(compiled.CUDA / "launches.h", folder / "cuda")
    shutil.copytree(compiled.CUDA.parent / "common", folder / "common")
    names = []
    for name, kind in KINDS.items():
        for file in kind.files:
            path = folder / "cuda" / "kernels" / file
            text = path.read_text()
            for part, pattern, replacement in PARTS + (PARTS_OF_CHUNKS if name == "chunks" else ()):

                def numbered(match: re.Match, file=file, part=part, replacement=replacement) -> str:
                    names.append((part, file, match[0].strip()))
                    return match.expand(replacement).replace("NUMBER", str(len(names)))

                text = re.sub(pattern, numbered, text)
            for whole, changed in NUMBERED.get(file, {}).items():
                assert whole in text
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
        source, cuda = folder / "broken_head.cpp", folder / "cuda"
        included = [*(f"kernels/{name}" for name in KERNELS), *(f"kernels/instances/{name}" for name in INSTANCES)]
        lines = [f'#include "{cuda / name}"\n' for name in (*included, "launches.h")]
        source.write_text("".join(['#include <vector>\nextern "C" { int broken; }\n', *lines, head]))
        return compiled.library(source), names


def _inputs(kind: str) -> dict[str, Tensor]:
    """Queries three decades apart; other tensors so small that halves do not hold them by themselves.

    Keys are so large that the rule corrects, except those of steps, whose keys have a power of their own.
    """
    torch.manual_seed(1)
    (_, _, tokens, (d_key, d_value), _), size = KINDS[kind], 1e-7
    q, k = torch.rand(tokens, d_key), (size if kind == "steps" else 0.3) * torch.rand(tokens, d_key)
    v, g = size * torch.randn(tokens, d_value), size * torch.randn(tokens, d_value)
    q = q * 10 ** -(5 + 3 * torch.rand(tokens, 1))
    tensors = {name: x.bfloat16() for name, x in {"q": q, "k": k, "v": v}.items()}
    alpha = 1 - torch.rand(tokens) ** (32 if kind == "chunks" else 4)  # what is written outlives a chunk
    return tensors | {"beta": torch.rand(tokens), "alpha": alpha, "grad_out": g.bfloat16()}


def _expected(x: dict[str, Tensor], case: Case) -> list[Tensor]:
    names = ("q", "k", "v", *GATES[case.rule])
    given = [x[name].double()[None, :, None].requires_grad_() for name in names]
    out, _ = getattr(ops, f"{case.rule}_rule")(
        *given, feature_map=build_map("dpfp", x["k"].shape[1], nu=case.nu) if case.nu else None,
        normalize_features=case.nu > 0, normalize_output=case.normalize_output, eps=case.eps, backend="reference",
    )  # fmt: skip
    return [y.detach()[0, :, 0] for y in (out, *torch.autograd.grad(out, given, x["grad_out"].double()[None, :, None]))]


def _results(library: ctypes.CDLL, kind: str, x: dict[str, Tensor], case: Case) -> list[Tensor]:
    given = [x[name] for name in ("q", "k", "v", "beta", "alpha")]
    out, gradients = torch.full_like(x["v"], float("nan")), [torch.full_like(y, float("nan")) for y in given]
    pointers = [ctypes.c_void_p(y.data_ptr()) for y in (*given, out, x["grad_out"], *gradients)]
    run, (_, _, tokens, widths, _) = getattr(library, f"run_{kind}"), KINDS[kind]
    run.restype = ctypes.c_char_p
    tensors = (ctypes.c_void_p * len(pointers))(*pointers)
    more = (RULES.index(case.rule), case.nu) if kind == "chunks" else ()
    error = run(tensors, tokens, *widths, case.normalize_output, ctypes.c_float(case.eps), *more)
    assert error is None, error
    return [out] if kind == "steps" else [out, *gradients]


def _error(results: list[Tensor], expected: list[Tensor]) -> float:
    """Returns the largest error of a result, in the mean over its rows, of each over the row's norm."""
    errors = []
    for a, b in zip(results, expected, strict=False):  # steps have no gradients, and not all rules have all gates
        a, b = (y.double().view(1 if y.dim() == 1 else len(y), -1) for y in (a, b))
        error = (a - b).norm(dim=1) / b.norm(dim=1).clamp(min=1e-3 * b.norm() / len(b) ** 0.5)
        errors.append(error.square().mean().sqrt().nan_to_num(torch.inf).item())
    return max(errors)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_taken_out_is_noticed(kind):
    library, names = _library()
    unnoticed = {number: name for number, name in enumerate(names, 1) if name[1] in KINDS[kind].files}
    assert {part for part, _, _ in unnoticed.values()} == KINDS[kind].parts
    x = _inputs(kind)
    for case in KINDS[kind].cases:
        expected = _expected(x, case)
        for number in (0, *unnoticed):
            ctypes.c_int.in_dll(library, "broken").value = number
            error = _error(_results(library, kind, x, case), expected)
            if number == 0:
                assert error < LIMIT / 2
            elif error >= LIMIT:
                unnoticed[number] = None
        unnoticed = {number: name for number, name in unnoticed.items() if name}
    assert not unnoticed, sorted(unnoticed.values())
