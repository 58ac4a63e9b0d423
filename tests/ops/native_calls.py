"""Calls of the rules with a fixed choice of numbers, their results with gradients, and how close these must be."""

import torch
from torch import Tensor

from fwp_fairseq import ops
from fwp_fairseq.ops import STRENGTHS
from tests.maps import build_map
from tests.ops.instruction_sets import on_each

# Relative to the largest value of the tensor. float64: only the order of additions differs.
# float32: 1e-6 is about 8 units in the last place; gradients pass through three more products.
TOLERANCE = {torch.float64: (1e-10, 1e-10), torch.float32: (1e-6, 1e-5)}


def build(feature_map, d_key: int):
    return None if feature_map is None else build_map(feature_map[0], d_key, **feature_map[1]).eval()


def make_inputs(
    rule: str, T: int, S: int, *, B=2, H=2, d_key=7, d_value=5, feature_map=("dpfp", {"nu": 2}), state=False, seed=0
) -> dict[str, Tensor]:
    """float64; q and k as (T, B, C) seen as (B, T, H, d)."""
    generator = torch.Generator().manual_seed(seed + 1000 * T + S)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = {"q": normal(T, B, H, d_key).transpose(0, 1), "k": normal(S, B, H, d_key).transpose(0, 1)}
    if feature_map is None:  # normalisers expect features that are not negative
        x = {name: y.abs() for name, y in x.items()}
    x["v"] = normal(B, S, H, d_value)
    if rule != "sum":
        x["beta"] = normal(B, S, H).sigmoid()
    if rule == "gated_delta":
        x["alpha"] = normal(B, S, H).sigmoid() ** 0.3
    if state:
        d_dot = getattr(build(feature_map, d_key), "d_dot", d_key)
        x["W"] = normal(B, H, d_dot, d_value)
        x["z"] = normal(B, H, d_dot).abs()
    return x


def call(rule: str, x: dict[str, Tensor], *, state: bool, **options):
    given = [x[name] for name in ("q", "k", "v", *STRENGTHS[rule])]
    initial = (x["W"], x["z"]) if state else None
    options = {"return_state": True} | options
    return getattr(ops, f"{rule}_rule")(*given, initial_state=initial, **options)


def results(
    rule: str, x: dict[str, Tensor], dtype=torch.float64, *, state=False, reads=("out", "state.W", "state.z"), **options
) -> dict[str, Tensor]:
    """Outputs, and gradients of a fixed random function of those that ``reads`` names."""
    x = {name: y.detach().to(dtype).requires_grad_() for name, y in x.items()}
    out, final = call(rule, x, state=state, **options)
    found = {"out": out}
    if final is not None:
        found["state.W"] = final.W
        if final.z is not None:
            found["state.z"] = final.z
    generator = torch.Generator().manual_seed(7)
    loss = sum(
        (found[name] * torch.randn(found[name].shape, generator=generator, dtype=torch.float64).to(dtype)).sum()
        for name in reads
        if name in found
    )
    loss = loss + sum(y.sum() * 0 for y in x.values() if y.numel() == 0)  # without a position nothing needs a gradient
    for name, gradient in zip(x, torch.autograd.grad(loss, list(x.values()), allow_unused=True), strict=True):
        found[f"gradient of {name}"] = torch.zeros_like(x[name]) if gradient is None else gradient
    return {name: y.detach() for name, y in found.items()}


def assert_agree(expected: dict[str, Tensor], found: dict[str, Tensor], dtype=torch.float64, where="") -> None:
    forward, backward = TOLERANCE[dtype]
    assert expected.keys() == found.keys()
    for name, a in expected.items():
        b = found[name]
        assert b.shape == a.shape and b.dtype == dtype, f"{name} {where}"
        if a.numel() == 0:
            continue
        # A single key cancels out of a normalised output: its gradient is eps-sized, the rounding of it is not.
        largest = max(a.abs().max().item(), 1e-3 if "gradient" in name else 1e-30)
        limit = (backward if "gradient" in name else forward) * largest
        error = (a - b.double()).abs().max().item()
        assert error <= limit, f"{name}: error {error:.2e}, at most {limit:.2e} {where}"


def compare(rule: str, x: dict[str, Tensor], dtype=torch.float64, **options) -> None:
    """The kernels of every instruction set against the reference."""
    expected = results(rule, x, backend="reference", **options)
    for name, found in on_each(lambda: results(rule, x, dtype, backend="native", **options)).items():
        assert_agree(expected, found, dtype, name)
