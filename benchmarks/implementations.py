"""Our implementations and others, each as a function of tensors in its own layout.

The others are not dependencies; one that is not installed gives the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fwp_fairseq import feature_maps, ops

from .cases import HEADS, WIDTH, Case


class Prepared(NamedTuple):
    """The timed call is ``run(**tensors)``; tensors are (B, H, T, d) if ``heads_first``, else (B, T, H, d)."""

    run: Callable[..., Tensor]
    tensors: dict[str, Tensor]
    heads_first: bool = False


@dataclass(frozen=True)
class Implementation:
    """An implementation to time.

    ``prepare`` makes the call, and is not timed. ``oracle`` computes the same from the same tensors, (B, T, H, d), in
    float64. ``ours`` tells whether our tolerances apply; other implementations only have to compute the same function.
    """

    prepare: Callable[[Case, dict[str, Tensor]], Prepared]
    oracle: Callable[..., Tensor]
    obstacle: Callable[[Case, str], str | None] = lambda case, device: None
    ours: bool = False


def inputs(case: Case, device: str, seed: int = 0) -> dict[str, Tensor]:
    """q, k and v in fairseq's layout, (T, B, C) viewed as (B, T, H, d), and beta after the sigmoid."""
    drawn = {"generator": torch.Generator(device).manual_seed(seed + case.rows * case.length), "device": device}
    batch, dtype = case.rows // HEADS, getattr(torch, case.dtype)
    x = {name: torch.randn(case.length, batch, HEADS * WIDTH, **drawn) for name in ("q", "k", "v")}
    x["beta"] = torch.rand(case.length, batch, HEADS, **drawn)
    x = {name: y.to(dtype).transpose(0, 1) for name, y in x.items()}
    return {name: y if name == "beta" else y.unflatten(2, (HEADS, WIDTH)) for name, y in x.items()}


@cache
def phi(case: Case) -> feature_maps.FeatureMap:
    return feature_maps.build_feature_map(case.feature_map, WIDTH, case.d_dot)


def _operator(case: Case, backend: str, feature_map, **options) -> Callable[..., Tensor]:
    """The operator as a decoder calls it: causal, with the paper's normaliser for the rule, without a state."""
    options |= {"feature_map": feature_map, "backend": backend, "return_state": False}
    if case.rule == "sum":
        return lambda q, k, v, beta=None: ops.sum_rule(q, k, v, **options)[0]
    return lambda q, k, v, beta: ops.delta_rule(q, k, v, beta, **options)[0]


def _given(case: Case, x: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: y for name, y in x.items() if name != "beta" or case.rule != "sum"}


def _by_reference(case: Case, **x: Tensor) -> Tensor:
    return _operator(case, "reference", phi(case))(**x)


def _backend(name: str, ours: bool = False) -> Implementation:
    return Implementation(
        prepare=lambda case, x: Prepared(_operator(case, name, phi(case)), _given(case, x)),
        oracle=_by_reference,
        ours=ours,
    )


def _features(case: Case, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """The features of q and k, divided by their sums if the rule requires it."""
    found = dict(_given(case, x))
    for name in ("q", "k"):
        mapped = phi(case)(x[name].float())
        if case.rule == "delta":
            mapped = mapped / (mapped.sum(-1, keepdim=True) + 1e-6)
        found[name] = mapped.to(x[name].dtype)
    return {name: y.contiguous() for name, y in found.items()}


def _from_features(case: Case, **x: Tensor) -> Tensor:
    return _operator(case, "reference", None, normalize_features=False)(**x)


def _softmax(case: Case, x: dict[str, Tensor]) -> Prepared:
    tensors = {name: x[name].transpose(1, 2).contiguous() for name in ("q", "k", "v")}
    return Prepared(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), tensors, heads_first=True)


def _softmax_oracle(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bthd,bshd->bhts", q, k) / WIDTH**0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.einsum("bhts,bshd->bthd", scores.masked_fill(future, -torch.inf).softmax(-1), v)


def _fla(case: Case, x: dict[str, Tensor]) -> Prepared:
    """flash-linear-attention on our features, because its own DPFP map loses negative coordinates."""
    if case.rule == "sum":
        from fla.ops.linear_attn import chunk_linear_attn

        return Prepared(lambda q, k, v: chunk_linear_attn(q, k, v, scale=1.0, normalize=True)[0], _features(case, x))
    from fla.ops.delta_rule import chunk_delta_rule

    return Prepared(lambda q, k, v, beta: chunk_delta_rule(q, k, v, beta, scale=1.0)[0], _features(case, x))


def _fla_obstacle(case: Case, device: str) -> str | None:
    if device == "cpu":
        return "flash-linear-attention has no CPU kernels"
    module = f"fla.ops.{'linear_attn' if case.rule == 'sum' else 'delta_rule'}"
    try:
        __import__(module)
    except Exception as error:  # a library may fail in any way when it looks for its device
        return f"import {module}: {type(error).__name__}: {error}"
    return None


IMPLEMENTATIONS = {
    "ours": _backend("native", ours=True),
    "softmax": Implementation(_softmax, _softmax_oracle),
    "torch": _backend("chunked"),
    "fla": Implementation(_fla, _from_features, _fla_obstacle),
}
