"""The compiled operators of ``csrc/``: phi applied on the fly, phi and Gram matrices recomputed in the backward.

``torch.ops.fwp.fast_weights`` and ``fast_weights_backward`` get their fake kernels and autograd here, once, when this
module is imported and the library loads. Saved for the backward: the inputs, nothing else.
"""

import torch
from torch import Tensor

from .. import _extension
from ..feature_maps import KernelOptions
from . import native_cuda, transforms
from .problem import FastWeights, Problem, state_type

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def kernel_of(feature_map) -> str | None:
    """The map's name in the compiled library, None where that does not know it."""
    return "identity" if feature_map is None else getattr(feature_map, "kernel", None)


def kernel_options(feature_map) -> KernelOptions:
    return KernelOptions() if feature_map is None else feature_map.kernel_options()


def new_rows(x: Tensor, width: int) -> Tensor:
    """As ``new_rows`` of csrc/cpu/operators.cpp."""
    batch, length, heads = x.shape[:3]
    if x.stride(1) > x.stride(0):
        return x.new_empty(length, batch, heads, width).transpose(0, 1)
    return x.new_empty(batch, length, heads, width)


def _fake(
    q, k, v, beta, key_padding_mask, initial_W, initial_z, projection, rule, feature_map, d_dot, input_scale, causal,
    normalize_features, normalize_output, eps, return_state,
):  # fmt: skip
    batch, _, heads, d_value = v.shape
    dtype = state_type(q.dtype)
    W = q.new_empty((batch, heads, d_dot, d_value) if return_state else 0, dtype=dtype)
    z = q.new_empty((batch, heads, d_dot) if return_state and normalize_output else 0, dtype=dtype)
    return new_rows(q, d_value), W, z


def _fake_backward(grad_out, grad_W, grad_z, q, k, v, beta, key_padding_mask, initial_W, initial_z, *options):
    none = q.new_empty(0, dtype=state_type(q.dtype))
    return (
        *(new_rows(x, x.shape[3]) for x in (q, k, v)),
        q.new_empty(0) if beta is None else new_rows(beta, 1).squeeze(3),
        *(none.clone() if x is None else x.new_empty(x.shape) for x in (initial_W, initial_z)),
    )


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:8])
    ctx.options = inputs[8:]


def _differentiate(ctx, grad_out, grad_W, grad_z):
    transforms.refuse_tangents("fwp::fast_weights_backward", grad_out, grad_W, grad_z)
    *options, return_state = ctx.options
    normalize_output = options[6]
    inputs = ctx.saved_tensors
    if not return_state:
        grad_W = grad_z = None
    elif not normalize_output:
        grad_z = None
    gradients = torch.ops.fwp.fast_weights_backward(grad_out, grad_W, grad_z, *inputs, *options)
    given = (
        None if x is None else gradient for x, gradient in zip((*inputs[:4], *inputs[5:7]), gradients, strict=True)
    )
    q, k, v, beta, W, z = given
    return q, k, v, beta, None, W, z, None, *(None for _ in ctx.options)


def _refuse(ctx, *gradients):
    raise NotImplementedError(
        "fwp::fast_weights has no second derivative; the backends chunked and reference have every one"
    )


def _register() -> None:
    torch.library.register_fake("fwp::fast_weights", _fake)
    torch.library.register_fake("fwp::fast_weights_backward", _fake_backward)
    torch.library.register_autograd("fwp::fast_weights", _differentiate, setup_context=_save)
    torch.library.register_autograd("fwp::fast_weights_backward", _refuse)


_STATUS = _extension.status()
if _STATUS.cpu:
    _register()


def unsupported_reasons(problem: Problem) -> list[str]:
    """Why the compiled library cannot serve this call; empty when it can."""
    if not _STATUS.cpu:
        return [_STATUS.reasons["cpu"]]
    reasons, device = transforms.reasons(), problem.v.device.type
    if device not in ("cpu", "cuda"):
        reasons.append(f"the compiled library has no kernel for {device} tensors")
    if problem.v.dtype not in _FLOATING:
        reasons.append(f"the compiled library has no kernel for {problem.v.dtype}")
    name = kernel_of(problem.feature_map)
    if name is None:
        reasons.append(f"the compiled library does not know the feature map {type(problem.feature_map).__name__}")
    else:
        projection = kernel_options(problem.feature_map).projection
        if projection is not None and projection.requires_grad:
            reasons.append(f"the compiled library gives no gradient to the projection of the feature map {name}")
    if not problem.v.shape[-1]:
        reasons.append("the compiled library has no kernel for values of width 0")
    if device == "cuda" and not reasons:
        reasons = native_cuda.unsupported_reasons(problem, name)
    return reasons


def run(problem: Problem) -> tuple[Tensor, FastWeights | None]:
    """Computes the operator; see :mod:`.fast_weights` for shapes and :class:`.problem.Problem` for the inputs."""
    dtype, phi = problem.dtype, problem.feature_map
    projection, input_scale = kernel_options(phi)
    W = z = None
    if problem.initial_state is not None:
        W = problem.initial_state.W.to(dtype)
        z = problem.initial_state.z.to(dtype) if problem.normalize_output else None
    inputs = native_cuda.input_type(problem)
    if problem.v.device.type == "cpu" and inputs == torch.float16:  # bfloat16 is taken as it is
        inputs = dtype
    out, W, z = torch.ops.fwp.fast_weights(
        problem.q.to(inputs), problem.k.to(inputs), problem.v.to(inputs),
        None if problem.beta is None else problem.beta.to(dtype),
        problem.key_padding_mask, W, z, None if projection is None else projection.to(dtype), problem.rule,
        kernel_of(phi),
        problem.k.shape[-1] if phi is None else phi.d_dot, input_scale, problem.causal, problem.normalize_features,
        problem.normalize_output, problem.eps, problem.return_state,
    )  # fmt: skip
    state = FastWeights(W, z if problem.normalize_output else None) if problem.return_state else None
    return out.to(problem.v.dtype), state
