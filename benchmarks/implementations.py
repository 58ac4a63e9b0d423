"""Our implementations and others, each as a function of tensors in its own layout.

The others are not dependencies; one that is not installed gives the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fwp_fairseq import feature_maps
from fwp_fairseq.ops.fast_weights import FUNCTIONS

from .cases import HEADS, WIDTH, Case
from .clock import Times


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
    ``eager`` ones are launched call by call on a GPU, where the others are in a CUDA graph.
    """

    prepare: Callable[[Case, dict[str, Tensor]], Prepared]
    oracle: Callable[..., Tensor]
    obstacle: Callable[[Case, str], str | None] = lambda case, device: None
    ours: bool = False
    eager: bool = False


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
    """Returns the operator as a decoder calls it: causal, with the paper's normaliser for the rule, without a state."""
    options |= {"feature_map": feature_map, "backend": backend, "return_state": False}
    return lambda **x: FUNCTIONS[case.rule](**x, **options)[0]


def _operands(case: Case, x: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: y for name, y in x.items() if name != "beta" or case.rule != "sum"}


def _by_reference(case: Case, **x: Tensor) -> Tensor:
    return _operator(case, "reference", phi(case))(**x)


def _backend(name: str, ours: bool = False) -> Implementation:
    return Implementation(
        prepare=lambda case, x: Prepared(_operator(case, name, phi(case)), _operands(case, x)),
        oracle=_by_reference,
        ours=ours,
    )


def _mapped(case: Case, x: Tensor) -> Tensor:
    """Returns the features of q or k, divided by their sums if the rule requires it."""
    features = phi(case)(x.float())
    if case.rule == "delta":
        features = features / (features.sum(-1, keepdim=True) + 1e-6)
    return features.to(x.dtype)


def _features(case: Case, x: dict[str, Tensor]) -> dict[str, Tensor]:
    features = {name: _mapped(case, y) if name in ("q", "k") else y for name, y in _operands(case, x).items()}
    return {name: y.contiguous() for name, y in features.items()}


def _from_features(case: Case, **x: Tensor) -> Tensor:
    return _operator(case, "reference", None, normalize_features=False)(**x)


def softmax(kernel: str | None, *qkv: Tensor, causal: bool) -> Tensor:
    """PyTorch's attention (B, H, T, d) by one of :data:`SOFTMAX_KERNELS`, or by the kernel that PyTorch chooses."""
    if kernel is None:
        return F.scaled_dot_product_attention(*qkv, is_causal=causal)
    with sdpa_kernel(SOFTMAX_KERNELS[kernel]):
        return F.scaled_dot_product_attention(*qkv, is_causal=causal)


def _softmax(kernel: str | None) -> Implementation:
    def prepare(case: Case, x: dict[str, Tensor]) -> Prepared:
        tensors = {name: x[name].transpose(1, 2).contiguous() for name in ("q", "k", "v")}
        return Prepared(lambda q, k, v: softmax(kernel, q, k, v, causal=True), tensors, heads_first=True)

    def obstacle(case: Case, device: str) -> str | None:
        return None if kernel is None or device == "cuda" else f"PyTorch has {kernel} attention for CUDA only"

    return Implementation(prepare, _softmax_oracle, obstacle)


def _softmax_oracle(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bthd,bshd->bhts", q, k) / WIDTH**0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.einsum("bhts,bshd->bthd", scores.masked_fill(future, -torch.inf).softmax(-1), v)


def _fla_kernel(case: Case) -> Callable[..., Tensor]:
    """flash-linear-attention on our features, because its own DPFP map loses negative coordinates."""
    if case.rule == "sum":
        from fla.ops.linear_attn import chunk_linear_attn

        return lambda q, k, v: chunk_linear_attn(q, k, v, scale=1.0, normalize=True)[0]
    from fla.ops.delta_rule import chunk_delta_rule

    return lambda q, k, v, beta: chunk_delta_rule(q, k, v, beta, scale=1.0)[0]


def _fla(case: Case, x: dict[str, Tensor]) -> Prepared:
    return Prepared(_fla_kernel(case), _features(case, x))


def _fla_mapped(case: Case, x: dict[str, Tensor]) -> Prepared:
    """Returns the same with the features made in each call, by what torch.compile makes of PyTorch's map."""
    kernel, mapped = _fla_kernel(case), torch.compile(partial(_mapped, case))
    return Prepared(lambda q, k, **others: kernel(mapped(q), mapped(k), **others), dict(_operands(case, x)))


def _fla_obstacle(case: Case, device: str) -> str | None:
    if device == "cpu":
        return "flash-linear-attention has no CPU kernels"
    module = f"fla.ops.{'linear_attn' if case.rule == 'sum' else 'delta_rule'}"
    try:
        __import__(module)
    except Exception as error:  # a library may fail in any way when it looks for its device
        return f"import {module}: {type(error).__name__}: {error}"
    return None


SOFTMAX_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def timed_as(names: list[str], device: str) -> list[str]:
    """Returns the implementations to time for these names: on a GPU each of PyTorch's kernels of softmax attention."""
    kernels = ["softmax"] if device == "cpu" else [f"softmax-{kernel}" for kernel in SOFTMAX_KERNELS]
    return [timed for name in names for timed in (kernels if name == "softmax" else [name])]


def with_fastest_softmax(timed: Times) -> dict:
    """Returns the fields of a record for these times; the fastest kernel of softmax attention is ``softmax``, too."""
    kernels = {name: used for name, used in timed.seconds.items() if name.startswith("softmax-")}
    if not kernels:
        return timed._asdict()
    name = min(kernels, key=kernels.get)
    seconds = {**timed.seconds, "softmax": kernels[name]}
    return timed._asdict() | {"seconds": seconds, "softmax_kernel": name.removeprefix("softmax-")}


IMPLEMENTATIONS = {
    "ours": _backend("native", ours=True),
    "softmax": _softmax(None),
    **{f"softmax-{kernel}": _softmax(kernel) for kernel in SOFTMAX_KERNELS},
    "torch": _backend("chunked"),
    "fla": Implementation(_fla, _from_features, _fla_obstacle),
    "fla-mapped": Implementation(_fla_mapped, _by_reference, _fla_obstacle),
    "fla-mapped-eager": Implementation(_fla_mapped, _by_reference, _fla_obstacle, eager=True),
}
