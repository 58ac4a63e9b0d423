"""Errors of the operator beside those of softmax attention, in both types, and of rules with bfloat16 operands."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fwp_fairseq.ops.call import CORRECTING, RULES
from tests.cuda.cases import DPFP, make, run

pytestmark = [pytest.mark.slow, pytest.mark.needs("native", "cuda")]

NAMES = ("out", "dq", "dk", "dv")
# Root mean square errors over those of the numbers, times 1000: at most so much for the operator, and at least so much
# with bfloat16 operands. Rounding results to bfloat16 alone gives 1.6.
TABLE = {
    "sum": ((1.8, 2.1, 2.1, 1.9), (2.0, 3.2, 3.0, 2.4)),
    "delta": ((1.9, 2.1, 2.1, 1.9), (2.4, 2.9, 2.9, 2.5)),
    "gated": ((1.8, 2.1, 2.1, 1.9), (2.0, 3.2, 3.0, 2.4)),
    "gated_delta": ((1.9, 2.1, 2.1, 1.9), (2.4, 2.9, 2.9, 2.5)),
}
# The same in float16, at most, for the operator, whose operands do not differ, and in both types for PyTorch's softmax
# attention. Rounding results to float16 alone gives 0.2.
IN_FLOAT16 = {
    "sum": (0.4, 0.6, 0.6, 0.4),
    "delta": (0.5, 0.7, 0.7, 0.5),
    "gated": (0.4, 0.6, 0.6, 0.4),
    "gated_delta": (0.5, 0.7, 0.7, 0.5),
}
SOFTMAX = {torch.bfloat16: (2.1, 3.6, 3.6, 2.8), torch.float16: (0.3, 0.5, 0.5, 0.4)}


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().double()


class Product(torch.autograd.Function):
    """A matrix product whose operands are rounded to bfloat16, in both directions."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(rounded(x), rounded(y))
        return rounded(x) @ rounded(y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return rounded(g) @ y.mT, x.mT @ rounded(g)


def with_bfloat16_operands(rule: str, x: dict[str, Tensor], phi, normalize_output: bool) -> Tensor:
    """The rule over one chunk (csrc/cuda/README.md), causal, features normalised where the output is not."""
    q, k, v = (x[name].transpose(1, 2) for name in ("q", "k", "v"))
    q, k = phi(q), phi(k)
    if not normalize_output:
        q, k = (y / y.sum(-1, keepdim=True) for y in (q, k))
    beta = x["beta"].transpose(1, 2)[..., None] if "beta" in x else torch.ones_like(v[..., :1])
    keep = x["alpha"].transpose(1, 2)[..., None] if "alpha" in x else 1 - beta if rule == "gated" else None
    D = torch.ones(v.shape[2], v.shape[2], dtype=v.dtype)
    if keep is not None:
        left = keep.log().cumsum(2)
        D = (left - left.mT).tril().exp()
    P, u = (D * Product.apply(q, k.mT)).tril(), beta * v
    if rule in CORRECTING:
        L = (beta * D * Product.apply(k, k.mT)).tril(-1)
        u = Product.apply(torch.linalg.inv(torch.eye(v.shape[2]).double() + L), u)
    out = Product.apply(P if rule != "gated" else P * beta.mT, u if rule != "gated" else v)
    if normalize_output:
        out = out / (P * beta.mT if rule == "gated" else P).sum(-1, keepdim=True)
    return out.transpose(1, 2)


def errors(results: list[Tensor], expected: list[Tensor]) -> list[float]:
    return [1000 * ((a.double() - b).norm() / b.norm()).item() for a, b in zip(results, expected, strict=True)]


def gradients(out: Tensor, x: dict[str, Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The output and the gradients of q, k and v, in this type, of the function of the output that ``run`` takes."""
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(dtype).to(out.dtype)
    return [y.detach().to(dtype) for y in (out, *torch.autograd.grad(out, [x["q"], x["k"], x["v"]], g))]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_errors_beside_bfloat16_operands(rule, dtype):
    """Operands have 11 bits, in the forward as in the backward."""
    x, phi = make(rule, 64, 64, dtype=dtype, d_key=64, d_value=64, feature_map=DPFP)
    normalize_output = rule not in CORRECTING
    options = dict(
        causal=True, normalize_features=not normalize_output, normalize_output=normalize_output, return_state=False,
        grad_dtype=dtype,
    )  # fmt: skip
    names = ["out", *(f"gradient of {n}" for n in ("q", "k", "v"))]
    exact = run(rule, x, phi, backend="reference", device="cpu", dtype=torch.float64, **options)
    ours = run(rule, x, phi, backend="native", device="cuda", **options)
    expected = [exact[name] for name in names]
    wide = {name: y.double().requires_grad_() for name, y in x.items()}
    rough = gradients(with_bfloat16_operands(rule, wide, phi.to("cpu"), normalize_output), wide, torch.bfloat16)
    measured = errors([ours[name] for name in names], expected), errors(rough, expected)
    most, least = TABLE[rule]
    most = IN_FLOAT16[rule] if dtype == torch.float16 else most
    assert all(a <= b for a, b in zip(measured[0], most, strict=True)), measured
    assert all(a >= b for a, b in zip(measured[1], least, strict=True)), measured


@pytest.mark.parametrize("dtype", SOFTMAX, ids=str)
def test_errors_of_softmax_attention(dtype):
    x, _ = make("sum", 64, 64, dtype=dtype, d_key=64, d_value=64)
    results = []
    for kind in (dtype, torch.float64):
        given = {name: y.to(kind).requires_grad_() for name, y in x.items()}
        out = F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in given.values()), is_causal=True)
        g = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(dtype).to(kind)
        results.append([out.detach(), *torch.autograd.grad(out, list(given.values()), g)])
    measured = errors(*results)
    assert all(a <= b for a, b in zip(measured, SOFTMAX[dtype], strict=True)), measured
