"""The recurrence of the Delta RNN of Irie et al. 2021, a fast weight matrix that reads the net's own previous output.

Per head, at each position t, write then read (Sec. 3.1):

    R_t = R_{t-1} + beta_t (v_t - R_{t-1} k_t) k_t^T
    y_t = z_t + R_t softmax(y_{t-1})

A pad writes nothing and is not fed back: R and the y that the next position sees stay as they are; what is read there
is z_t + R softmax(y).

There are two implementations. ``reference`` is the loop over time in PyTorch, in any type and on any device, whose
gradients by autograd keep one R for each position. ``native`` is the compiled loop, for CPUs and, in float32 and for d
up to 128, for CUDA: it keeps what each position wrote, u_t = beta_t (v_t - R_{t-1} k_t), and the last R, from which the
backward goes back by R_{t-1} = R_t - u_t k_t^T, so that one R is enough. Neither can be computed for several positions
at a time.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .._operator import Kernel, Operator, new_rows
from . import native_cuda
from .call import state_type


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
    return OPERATOR(backend, z, Recurrence(z, k, v, beta, key_padding_mask, R, y))


class _Reference:
    @staticmethod
    def unsupported_reasons(call: Recurrence) -> list[str]:
        return []

    @staticmethod
    def run(call: Recurrence) -> tuple[Tensor, Tensor, Tensor]:
        z, k, v, beta, pads, R, y = call
        batch, _, heads, d = z.shape
        R = z.new_zeros(batch, heads, d, d) if R is None else R
        y = z.new_zeros(batch, heads, d) if y is None else y
        outputs = []
        for t, (z_t, *written) in enumerate(positions(z, k, v, beta)):
            after = delta(R, *written)
            R = after if pads is None else torch.where(pads[:, t, None, None, None], R, after)
            out = z_t + read(R, y.softmax(-1))
            y = keep(pads, t, y, out)
            outputs.append(out)
        return torch.stack(outputs, 1) if outputs else z, R, y


def positions(*rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The positions of tensors (B, L, ...), one after the other.

    A slice for each position would have a backward that fills L positions with zeros, L^2 in all; ``unbind`` has one
    backward for all.
    """
    return zip(*(x.unbind(1) for x in rows), strict=True)


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


def compiled_reasons(kernel: Kernel, x: Tensor) -> list[str]:
    """Why a compiled recurrence cannot serve rows like x, (B, L, H, d); empty when it can."""
    reasons = kernel.unsupported_reasons(x)
    return native_cuda.recurrence_unsupported_reasons(x) if x.device.type == "cuda" and not reasons else reasons


class _Native:
    @staticmethod
    def unsupported_reasons(call: Recurrence) -> list[str]:
        return compiled_reasons(KERNEL, call.z)

    @staticmethod
    def run(call: Recurrence) -> tuple[Tensor, Tensor, Tensor]:
        out, R, y, _ = torch.ops.fwp.recur(*call)
        return out, R, y


OPERATOR = Operator("the recurrence", native=_Native, reference=_Reference)


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
    found, last_R, written, *others = ctx.saved_tensors
    *gradients, R, y = torch.ops.fwp.recur_backward(grad_out, grad_R, grad_y, found, last_R, written, *others)
    return *gradients, None, R if ctx.given[0] else None, y if ctx.given[1] else None


KERNEL = Kernel("recur", _fake, _fake_backward, _save, _differentiate)
