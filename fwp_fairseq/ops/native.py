"""The compiled operators in ``csrc/``, which compute phi on the fly.

If the library loads, importing this module registers the fake kernels and the autograd formula of
``torch.ops.fwp.fast_weights`` and ``fast_weights_backward``. Only the inputs are saved for the backward pass, which
recomputes phi and the Gram matrices. On CUDA, PyTorch computes the maps favor and softmax_pair before the operator.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from .._constant import constant
from .._operator import FLOATING, HAS_LIBRARY, UP_TO_SINGLE, Kernel, new_rows
from ..numerics import state_type
from .call import Call, FastWeights, Rule, without_pads


def kernel_of(feature_map) -> str | None:
    """Returns the map's name in the compiled library, or None if the library does not implement it."""
    return "identity" if feature_map is None else getattr(feature_map, "kernel", None)


@constant
def _known() -> tuple[list[str], list[str]]:
    """Lists the rules and the maps of the compiled library."""
    return torch.ops.fwp.rules(), torch.ops.fwp.feature_maps()


def unknown_reasons(rule: Rule, feature_map) -> list[str]:
    """Lists the reasons to refuse a rule or a map that the compiled library does not know; empty if it knows both."""
    if not HAS_LIBRARY:
        return []
    rules, maps = _known()
    reasons = [] if rule in rules else [f"the compiled library does not know the {rule} rule"]
    if kernel_of(feature_map) not in maps:
        reasons.append(f"the compiled library does not know the feature map {type(feature_map).__name__}")
    return reasons


def projection_of(feature_map) -> Tensor | None:
    """Returns the projection matrix (m, d_key) of a map that has one (FAVOR+); None for other maps."""
    return None if feature_map is None else feature_map.kernel_projection()


class _Inputs(NamedTuple):
    """The tensor arguments of ``fwp::fast_weights``, in the order of its schema."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor | None
    alpha: Tensor | None
    key_padding_mask: Tensor | None
    initial_W: Tensor | None
    initial_z: Tensor | None
    projection: Tensor | None


class _Options(NamedTuple):
    """The arguments of ``fwp::fast_weights`` after the tensors; the backward operator takes all but the last."""

    rule: str
    feature_map: str
    d_dot: int
    causal: bool
    both_ways: bool
    normalize_features: bool
    normalize_output: bool
    eps: float
    return_state: bool


def _split(arguments) -> tuple[_Inputs, _Options]:
    count = len(_Inputs._fields)
    return _Inputs(*arguments[:count]), _Options(*arguments[count:])


def _fake(*arguments):
    inputs, options = _split(arguments)
    q, (batch, _, heads, d_value) = inputs.q, inputs.v.shape
    dtype, has_z = state_type(q.dtype), options.return_state and options.normalize_output
    W = q.new_empty((batch, heads, options.d_dot, d_value) if options.return_state else 0, dtype=dtype)
    z = q.new_empty((batch, heads, options.d_dot) if has_z else 0, dtype=dtype)
    return new_rows(q, d_value, inputs.v.dtype), W, z


def _fake_backward(grad_out, grad_W, grad_z, *arguments):
    inputs = _Inputs(*arguments[: len(_Inputs._fields)])
    q = inputs.q
    none = q.new_empty(0, dtype=state_type(q.dtype))
    return (
        *(new_rows(x, x.shape[3]) for x in (q, inputs.k, inputs.v)),
        *(q.new_empty(0) if x is None else new_rows(x, 1).squeeze(3) for x in (inputs.beta, inputs.alpha)),
        *(none.clone() if x is None else x.new_empty(x.shape) for x in (inputs.initial_W, inputs.initial_z)),
    )


def _save(ctx, inputs, output):
    tensors, ctx.options = _split(inputs)
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)  # a state that is not used costs the backward pass nothing


def _differentiate(ctx, grad_out, grad_W, grad_z):
    options, inputs = ctx.options, _Inputs(*ctx.saved_tensors)

    def filled(gradient, number):
        """Returns the gradient of the output ``number``; zeros if the output was not used."""
        return torch.zeros_like(_fake(*inputs, *options)[number]) if gradient is None else gradient

    grad_out = filled(grad_out, 0)
    reads_state = options.return_state and not (grad_W is None and grad_z is None)
    grad_W = filled(grad_W, 1) if reads_state else None
    grad_z = filled(grad_z, 2) if reads_state and options.normalize_output else None
    q, k, v, beta, alpha, W, z = torch.ops.fwp.fast_weights_backward(grad_out, grad_W, grad_z, *inputs, *options[:-1])
    gradients = _Inputs(q, k, v, beta, alpha, key_padding_mask=None, initial_W=W, initial_z=z, projection=None)
    # The gradient of an absent input is an empty tensor.
    gradients = (None if x is None else gradient for x, gradient in zip(inputs, gradients, strict=True))
    return *gradients, *(None for _ in options)


# The CUDA kernels multiply operands with 11 significant bits, which is enough for half precision but not for float32.
KERNEL = Kernel(
    "fast_weights", _fake, _fake_backward, _save, _differentiate, types=FLOATING,
    cuda_types=(torch.float16, torch.bfloat16), cuda_refusal="cuda_refusal",
    second_derivatives_in="chunked and reference",
)  # fmt: skip


def unsupported_reasons(call: Call) -> list[str]:
    """Returns the reasons why the compiled library cannot serve this call; empty if it can."""
    phi, d_key = call.feature_map, call.k.shape[-1]
    reasons = KERNEL.unsupported_reasons(call.v) + unknown_reasons(call.rule, phi)
    name = kernel_of(phi)
    projection = None if name is None else projection_of(phi)
    if projection is not None and projection.requires_grad:
        reasons.append(f"the compiled library gives no gradient to the projection of the feature map {name}")
    if not call.v.shape[-1]:
        reasons.append("the compiled library has no kernel for values of width 0")
    return reasons or KERNEL.refused(call.v, call.rule, d_key, d_key if phi is None else phi.d_dot)


def _with_features(call: Call) -> Call:
    """Computes the features of q and k with PyTorch, those of pads from zeros, and replaces the map by the identity."""
    raw = call.q, without_pads(call.k, call.key_padding_mask)
    q, k = (call.features(x.transpose(1, 2)).transpose(1, 2) for x in raw)
    return replace(call, q=q, k=k, feature_map=None)


def run(call: Call) -> tuple[Tensor, FastWeights | None]:
    """Computes the operator; see :mod:`.fast_weights` for shapes and :class:`.call.Call` for the inputs."""
    dtype = x_type = v_type = call.dtype
    if call.v.device.type == "cuda":
        if getattr(call.feature_map, "of_whole_rows", False):
            call = _with_features(call)
        v_type = call.v.dtype
        if call.q.dtype == call.k.dtype and call.q.dtype in UP_TO_SINGLE:
            x_type = call.q.dtype
    phi = call.feature_map
    projection = projection_of(phi)
    W = z = None
    if call.initial_state is not None:
        W = call.initial_state.W.to(dtype)
        z = call.initial_state.z.to(dtype) if call.normalize_output else None
    inputs = _Inputs(
        q=call.q.to(x_type),
        k=call.k.to(x_type),
        v=call.v.to(v_type),
        beta=None if call.beta is None else call.beta.to(dtype),
        alpha=None if call.alpha is None else call.alpha.to(dtype),
        key_padding_mask=call.key_padding_mask,
        initial_W=W,
        initial_z=z,
        projection=None if projection is None else projection.to(dtype),
    )
    options = _Options(
        rule=call.rule,
        feature_map=kernel_of(phi),
        d_dot=call.k.shape[-1] if phi is None else phi.d_dot,
        causal=call.causal,
        both_ways=call.both_ways,
        normalize_features=call.normalize_features,
        normalize_output=call.normalize_output,
        eps=call.eps,
        return_state=call.return_state,
    )
    # The schema is in csrc/fast_weights.cpp, the implementation in csrc/common/operators.h.
    out, W, z = KERNEL(*inputs, *options)
    state = FastWeights(W, z if call.normalize_output else None) if call.return_state else None
    return out.to(call.v.dtype), state
