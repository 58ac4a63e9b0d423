"""The recurrence of the Delta LSTM of Irie et al. 2021: three fast weight matrices that read the net's previous output.

Per head, at each position t, with f = softmax(h_{t-1}), for each gate g = u, i, o, write then read (Sec. 3.1):

    R^g_t = R^g_{t-1} + beta^g_t (v^g_t - R^g_{t-1} k^g_t) k^g_t^T
    x^g_t = z^g_t + R^g_t f

and then

    c_t = sigmoid(x^i_t) * x^u_t + (1 - sigmoid(x^i_t)) * c_{t-1}
    h_t = sigmoid(x^o_t) * c_t

A pad writes nothing: R, h and c stay as they are for the next position; what is read there is h of these equations.

There are two implementations. ``reference`` is the loop over time in PyTorch, in any type and on any device, whose
gradients by autograd keep three R for each position. ``native`` is the compiled loop, for CPUs and, in float32 and for
d up to 128, for CUDA: it keeps what each position wrote, x^u, both gates and c, and the last three R, from which the
backward goes back by taking each write away again.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .._operator import Kernel, Operator, new_rows
from .call import state_type
from .recurrence import compiled_reasons, delta, keep, positions, read

GATES = 3  # u, i and o


class LstmRecurrence(NamedTuple):
    """The checked arguments of one call; shapes as for :func:`recur_lstm`."""

    z: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    key_padding_mask: Tensor | None
    R: Tensor | None
    h: Tensor | None
    c: Tensor | None


def recur_lstm(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    R: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes the recurrence above. The heads of gate u come first, then those of i and o: 3 H of them.

    Args:
        z: (B, L, 3 H, d), what is added to each read.
        k: (B, L, 3 H, d), keys as they are written: the paper's have gone through a softmax.
        v: (B, L, 3 H, d).
        beta: (B, L, 3 H), write strengths after the sigmoid.
        key_padding_mask: (B, L), bool, True at pads.
        R: (B, 3 H, d, d), the matrices before the first position, transposed as W of :class:`FastWeights` is; None for
            0.
        h: (B, H, d), the output before the first position; None for 0.
        c: (B, H, d), the cell before the first position; None for 0.
        backend: auto, native, or chunked and reference, which both are the loop in PyTorch: matrix products of several
            positions do not exist.

    Returns:
        ``(out, R, h, c)``: out (B, L, H, d), and R, h and c after the last position; all float32 for half precision.

    Raises:
        NotImplementedError: ``native`` cannot serve these inputs; the message lists every reason.

    Cost: 18 d^2 multiplications per position and head, one position after the other. The backward of ``native`` keeps
    three matrices a head and, beside its inputs, 8 d numbers per position and head.
    """
    dtype = state_type(z.dtype)
    z, k, v, beta = (x.to(dtype) for x in (z, k, v, beta))
    R, h, c = (None if x is None else x.to(dtype) for x in (R, h, c))
    return OPERATOR(backend, z, LstmRecurrence(z, k, v, beta, key_padding_mask, R, h, c))


class _Reference:
    @staticmethod
    def unsupported_reasons(call: LstmRecurrence) -> list[str]:
        return []

    @staticmethod
    def run(call: LstmRecurrence) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        z, k, v, beta, pads, R, h, c = call
        batch, _, heads, d = z.shape
        R = z.new_zeros(batch, heads, d, d) if R is None else R
        h, c = (z.new_zeros(batch, heads // GATES, d) if x is None else x for x in (h, c))
        outputs = []
        for t, (z_t, *written) in enumerate(positions(z, k, v, beta)):
            after = delta(R, *written)
            R = after if pads is None else torch.where(pads[:, t, None, None, None], R, after)
            u, i, o = (z_t + read(R, h.softmax(-1).repeat(1, GATES, 1))).chunk(GATES, 1)
            i = i.sigmoid()
            cell = i * u + (1 - i) * c
            out = o.sigmoid() * cell
            h, c = keep(pads, t, h, out), keep(pads, t, c, cell)
            outputs.append(out)
        return torch.stack(outputs, 1) if outputs else z[:, :, : heads // GATES], R, h, c


class _Native:
    @staticmethod
    def unsupported_reasons(call: LstmRecurrence) -> list[str]:
        return compiled_reasons(KERNEL, call.z)

    @staticmethod
    def run(call: LstmRecurrence) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        out, R, h, c, *_ = torch.ops.fwp.recur_lstm(*call)
        return out, R, h, c


OPERATOR = Operator("the recurrence of the Delta LSTM", native=_Native, reference=_Reference)


def _states(k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, _, heads, d = k.shape
    h, c = (k.new_empty(batch, heads // GATES, d) for _ in range(2))
    return k.new_empty(batch, heads, d, d), h, c


def _fake(z, k, v, beta, key_padding_mask, R, h, c):
    of_net, d = k[:, :, : k.shape[2] // GATES], k.shape[3]
    return new_rows(of_net, d), *_states(k), new_rows(of_net, d), new_rows(k, d), new_rows(k, d)


def _fake_backward(grad_out, grad_R, grad_h, grad_c, found, cells, gates, last_R, written, k, v, beta, *others):
    rows = (new_rows(k, k.shape[3]) for _ in range(3))
    return *rows, new_rows(beta, 1).squeeze(3), *_states(k)


def _save(ctx, inputs, output):
    _, k, v, beta, pads, R, h, c = inputs
    out, last_R, _, _, cells, gates, written = output
    ctx.given = R is not None, h is not None, c is not None
    ctx.save_for_backward(out, cells, gates, last_R, written, k, v, beta, pads, h, c)
    ctx.mark_non_differentiable(cells, gates, written)


def _differentiate(ctx, grad_out, grad_R, grad_h, grad_c, *_):
    found = torch.ops.fwp.recur_lstm_backward(grad_out, grad_R, grad_h, grad_c, *ctx.saved_tensors)
    states = (x if given else None for x, given in zip(found[4:], ctx.given, strict=True))
    return *found[:4], None, *states


KERNEL = Kernel("recur_lstm", _fake, _fake_backward, _save, _differentiate)
