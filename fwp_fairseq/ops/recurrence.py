"""Recurrences of Irie et al. 2021: those of the Delta RNN and of the Recurrent Delta Net.

:func:`recur` is the Delta RNN's, a fast weight matrix that reads the net's own previous output. Per head, at each
position t, write then read (Sec. 3.1):

    R_t = R_{t-1} + beta_t (v_t - R_{t-1} k_t) k_t^T
    y_t = z_t + R_t softmax(y_{t-1})

A pad writes nothing and is not fed back: R and the y that the next position sees stay as they are; what is read there
is z_t + R softmax(y).

There are two implementations. ``reference`` is the loop over time in PyTorch, in any type and on any device, whose
gradients by autograd keep one R for each position. ``native`` is the compiled loop, for CPUs and, in float32 and for d
up to 128, for CUDA: it keeps what each position wrote, u_t = beta_t (v_t - R_{t-1} k_t), and the last R, from which the
backward goes back by R_{t-1} = R_t - u_t k_t^T, so that one R is enough. Neither can be computed for several positions
at a time.

:func:`recur_net` is a whole Recurrent Delta Net, compiled in the same way and for the same devices, for the map exp
divided by its sum. Other maps go through the loop of ``fwp_fairseq/layers/fast_nets``, which defines what it computes.
"""

import logging
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _extension, _transforms
from .._constant import constant
from . import native_cuda
from .backends import choose, count
from .call import state_type
from .native import new_rows, register

logger = logging.getLogger(__name__)


class Recurrence(NamedTuple):
    """The checked arguments of one call; shapes as for :func:`recur`."""

    z: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    key_padding_mask: Tensor | None
    R: Tensor | None
    y: Tensor | None


def recur(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    R: Tensor | None = None,
    y: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the recurrence above.

    Args:
        z: (B, L, H, d), what is added to each read.
        k: (B, L, H, d), keys as they are written: the paper's have gone through a softmax.
        v: (B, L, H, d).
        beta: (B, L, H), write strengths after the sigmoid.
        key_padding_mask: (B, L), bool, True at pads.
        R: (B, H, d, d), the matrix before the first position, transposed as W of :class:`FastWeights` is; None for 0.
        y: (B, H, d), the output before the first position; None for 0.
        backend: auto, native, or chunked and reference, which both are the loop in PyTorch: matrix products of several
            positions do not exist.

    Returns:
        ``(out, R, y)``: out (B, L, H, d), and R and y after the last position; all of them float32 for half precision.

    Raises:
        NotImplementedError: ``native`` cannot serve these inputs; the message lists every reason.

    Cost: 6 d^2 multiplications per position and head, one position after the other.
    """
    dtype = state_type(z.dtype)
    z, k, v, beta = (x.to(dtype) for x in (z, k, v, beta))
    R, y = (None if x is None else x.to(dtype) for x in (R, y))
    call = Recurrence(z, k, v, beta, key_padding_mask, R, y)
    # The loop in PyTorch is what there is beside the compiled one, whatever it is called.
    name = choose("the recurrence", "reference" if backend == "chunked" else backend, _IMPLEMENTATIONS, call)
    count(name, z)
    with torch.autocast(z.device.type, enabled=False):
        return _IMPLEMENTATIONS[name].run(call)


def recur_net(
    parts: Tensor,
    weight: Tensor,
    *,
    key_padding_mask: Tensor | None,
    W: Tensor | None,
    y: Tensor | None,
    largest: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the Recurrent Delta Net with the compiled loop: at each position, with A the ``weight`` of the head,

        [q', k', v, b'] = parts_t + tanh(y_{t-1}) A,  q = phi(q'), k = phi(k')
        W_t = W_{t-1} + sigmoid(b') (v - W_{t-1} k) k^T,  y_t = W_t q

    where phi(x) = e / (sum of e + eps), e = exp(min(x, largest)). At a pad W is only read, and y stays for the next.

    Args:
        parts: (B, L, H, 3 d + 1), what the slow net gives: q, k, v and the logit of beta side by side, 0 at pads.
        weight: (H, d, 3 d + 1).
        key_padding_mask, W, y: as for :func:`recur`.

    Returns:
        ``(out, W, y)`` as :func:`recur` does. The backward keeps the last W and, for each position, 5 d + 1 numbers.

    Raises:
        ValueError: the operator cannot serve these inputs; :func:`serves_net` tells before.

    Cost: 6 d^2 multiplications per position and head for W, and 6 d^2 for what is fed back.
    """
    count("native", parts)
    with torch.autocast(parts.device.type, enabled=False):
        given = parts, weight.to(parts.dtype), key_padding_mask, W, y
        out, W, y, *_ = torch.ops.fwp.recur_net(*given, largest, eps)
    return out, W, y


class _Reference:
    @staticmethod
    def unsupported_reasons(call: Recurrence) -> list[str]:
        return []

    @staticmethod
    def run(call: Recurrence) -> tuple[Tensor, Tensor, Tensor]:
        z, k, v, beta, pads, R, y = call
        batch, length, heads, d = z.shape
        R = z.new_zeros(batch, heads, d, d) if R is None else R
        y = z.new_zeros(batch, heads, d) if y is None else y
        outputs = []
        for t in range(length):
            after = delta(R, k[:, t], v[:, t], beta[:, t])
            R = after if pads is None else torch.where(pads[:, t, None, None, None], R, after)
            out = z[:, t] + read(R, y.softmax(-1))
            y = keep(pads, t, y, out)
            outputs.append(out)
        return torch.stack(outputs, 1) if outputs else z, R, y


def delta(R: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """R + beta (v - R k) k^T for one position: R (B, H, d_key, d_value), k and v (B, H, d), beta (B, H)."""
    u = beta.unsqueeze(-1) * (v - read(R, k))
    return R + k.unsqueeze(-1) * u.unsqueeze(-2)


def read(R: Tensor, x: Tensor) -> Tensor:
    """R x for every batch row and head."""
    return (x.unsqueeze(-2) @ R).squeeze(-2)


def keep(pads: Tensor | None, t: int, before: Tensor, after: Tensor) -> Tensor:
    """``before`` in the rows whose position t is a pad, else ``after``; both (B, H, d)."""
    return after if pads is None else torch.where(pads[:, t, None, None], before, after)


def compiled_reasons(x: Tensor) -> list[str]:
    """Why the compiled loops cannot serve rows like x, (B, L, H, d); empty when they can."""
    if not _STATUS.cpu:
        return [_STATUS.reasons["cpu"]]
    if not _COMPILED:
        return ["the compiled library was built before there was a recurrence: build it again"]
    reasons, device = _transforms.unsupported_reasons(), x.device.type
    if device not in ("cpu", "cuda"):
        reasons.append(f"the compiled library has no recurrence for {device} tensors")
    if x.dtype not in (torch.float32, torch.float64):
        reasons.append(f"the compiled library has no recurrence for {x.dtype}")
    if device == "cuda" and not reasons:
        reasons = native_cuda.recurrence_unsupported_reasons(x)
    return reasons


def serves_net(x: Tensor) -> bool:
    """Whether :func:`recur_net` serves a net whose rows are like x, (B, L, H, d); if not, the log says why, once."""
    reasons = compiled_reasons(x)
    if reasons:
        _log_loop(tuple(reasons))
    return not reasons


@constant
def _log_loop(reasons: tuple[str, ...]) -> None:
    logger.info("fast weights: the Recurrent Delta Net is a loop in PyTorch: %s", "; ".join(reasons))


class _Native:
    @staticmethod
    def unsupported_reasons(call: Recurrence) -> list[str]:
        return compiled_reasons(call.z)

    @staticmethod
    def run(call: Recurrence) -> tuple[Tensor, Tensor, Tensor]:
        out, R, y, _ = torch.ops.fwp.recur(*call)
        return out, R, y


_IMPLEMENTATIONS = {"native": _Native, "reference": _Reference}


def _rows_like(x: Tensor) -> Tensor:
    return new_rows(x, x.shape[3])


def _states(z: Tensor) -> tuple[Tensor, Tensor]:
    batch, _, heads, d = z.shape
    return z.new_empty(batch, heads, d, d), z.new_empty(batch, heads, d)


def _fake(z, k, v, beta, key_padding_mask, R, y):
    return _rows_like(k), *_states(k), _rows_like(k)


def _fake_backward(grad_out, grad_R, grad_y, found, last_R, written, k, v, beta, key_padding_mask, y):
    return _rows_like(k), _rows_like(k), _rows_like(k), new_rows(beta, 1).squeeze(3), *_states(k)


def _save(ctx, inputs, output):
    _, k, v, beta, pads, R, y = inputs
    out, last_R, _, written = output
    ctx.given = R is not None, y is not None
    ctx.save_for_backward(out, last_R, written, k, v, beta, pads, y)
    ctx.mark_non_differentiable(written)


def _differentiate(ctx, grad_out, grad_R, grad_y, _):
    _transforms.refuse_tangents("fwp::recur_backward", grad_out, grad_R, grad_y)
    found, last_R, written, *others = ctx.saved_tensors
    *gradients, R, y = torch.ops.fwp.recur_backward(grad_out, grad_R, grad_y, found, last_R, written, *others)
    return *gradients, None, R if ctx.given[0] else None, y if ctx.given[1] else None


def _net_shapes(parts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = new_rows(parts, parts.shape[3] // 3)
    return rows, *_states(rows)


def _fake_net(parts, weight, key_padding_mask, W, y, largest, eps):
    return *_net_shapes(parts), _net_shapes(parts)[0], _rows_like(parts)


def _fake_net_backward(grad_out, grad_W, grad_y, found, last_W, written, fed, weight, *others):
    return _rows_like(fed), *_net_shapes(fed)[1:]


def _save_net(ctx, inputs, output):
    _, weight, pads, W, y, *ctx.numbers = inputs
    out, last_W, _, written, fed = output
    ctx.given = W is not None, y is not None
    ctx.save_for_backward(out, last_W, written, fed, weight, pads, y)
    ctx.mark_non_differentiable(written, fed)


def _differentiate_net(ctx, grad_out, grad_W, grad_y, *_):
    _transforms.refuse_tangents("fwp::recur_net_backward", grad_out, grad_W, grad_y)
    found, last_W, written, fed, weight, pads, y = ctx.saved_tensors
    gradients = torch.ops.fwp.recur_net_backward(
        grad_out, grad_W, grad_y, found, last_W, written, fed, weight, pads, y, *ctx.numbers
    )
    parts, W, grad_y = gradients
    before = _tanh_before(found, y, pads)
    weight = torch.einsum("blhi,blhj->hij", before, parts)
    return parts, weight, None, W if ctx.given[0] else None, grad_y if ctx.given[1] else None, None, None


def _tanh_before(out: Tensor, y: Tensor | None, pads: Tensor | None) -> Tensor:
    """tanh of the output that each position (B, L, H, d) is fed with: of the last position before it that is no pad."""
    batch, length, heads, d = out.shape
    first = out.new_zeros(batch, 1, heads, d) if y is None else y.unsqueeze(1)
    all_of_them = torch.cat([first, out], 1)
    if pads is None:
        return all_of_them[:, :-1].tanh()
    last = torch.arange(1, length + 1, device=out.device).masked_fill(pads, 0).cummax(1).values
    last = torch.cat([last.new_zeros(batch, 1), last[:, :-1]], 1) if length else last
    return all_of_them.gather(1, last[..., None, None].expand(batch, length, heads, d)).tanh()


_STATUS = _extension.status()
_COMPILED = _STATUS.cpu and hasattr(torch.ops.fwp, "recur_net")
if _COMPILED:
    register("recur", _fake, _fake_backward, _save, _differentiate)
    register("recur_net", _fake_net, _fake_net_backward, _save_net, _differentiate_net)
