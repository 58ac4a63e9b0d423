"""Recurrences of the Delta RNN and Delta LSTM of Irie et al. 2021, which read a matrix R with their previous output.

Per head, each position t writes and then reads (Sec. 3.1). Delta RNN:

    R_t = R_{t-1} + beta_t (v_t - R_{t-1} k_t) k_t^T
    y_t = z_t + R_t softmax(y_{t-1})

Delta LSTM, where each gate g = u, i, o has a matrix R^g that is written like R above:

    x^g_t = z^g_t + R^g_t softmax(h_{t-1})
    c_t = sigmoid(x^i_t) * x^u_t + (1 - sigmoid(x^i_t)) * c_{t-1}
    h_t = sigmoid(x^o_t) * c_t

Padding writes nothing and is not fed back: R, y, h and c stay as they are for the next position. The output that is
returned for a padded position follows these equations with R_t = R_{t-1}.

There are two implementations. ``reference`` is a loop over time in PyTorch, for any dtype and device; for the backward
pass, autograd keeps the matrices of every position. ``native`` is the compiled loop for CPUs, and for CUDA in float32
with d up to 128. It keeps the last R and what each position wrote, u_t = beta_t (v_t - R_{t-1} k_t), and for the LSTM
also x^u, the gates i and o, and c. The backward pass recovers earlier matrices as R_{t-1} = R_t - u_t k_t^T. Neither
implementation can compute several positions at a time.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from .._operator import InPyTorch, Kernel, Operator, new_rows
from ..numerics import state_type, without_autocast
from .checks import check_mask, check_shapes, check_tensor, fail

LSTM_GATES = 3  # u, i and o


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
    """Computes the recurrence of the Delta RNN.

    Args:
        z: (B, L, H, d), added to each read.
        k: (B, L, H, d), keys as they are written (in the paper, after a softmax).
        v: (B, L, H, d).
        beta: (B, L, H), write strengths after the sigmoid.
        key_padding_mask: (B, L), bool, True at padding.
        R: (B, H, d, d), the matrix before the first position, transposed like W in :class:`.FastWeights`; None for 0.
        y: (B, H, d), the output before the first position; None for 0.
        backend: auto, native, chunked or reference. The last two are the same PyTorch loop, because several positions
            cannot be computed at once.

    Returns:
        ``(out, R, y)``: out (B, L, H, d), and R and y after the last position; all are float32 for half-precision
        inputs.

    Raises:
        ValueError: a tensor has a wrong shape, type or device.
        NotImplementedError: ``native`` does not support these inputs; the message lists every reason.

    Cost: 3 d^2 multiplications per position and head, one position after another.
    """
    _check("recur", 1, z, k, v, beta, key_padding_mask, R, y=y)
    return _run(_RNN, backend, z, k, v, beta, key_padding_mask, R, y)


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
    """Computes the recurrence of the Delta LSTM.

    The arguments are those of :func:`recur`, except that z, k, v, beta and R have 3 H heads: first those of gate u,
    then those of i and o. h and c are (B, H, d), the output and the cell before the first position; None for 0.

    Returns:
        ``(out, R, h, c)``: out (B, L, H, d), and R, h and c after the last position; all are float32 for half
        precision.

    Cost: 9 d^2 multiplications per position and head, one position after another. For the backward pass, ``native``
    keeps three matrices per head and, in addition to its inputs, 8 d numbers per position and head.
    """
    _check("recur_lstm", LSTM_GATES, z, k, v, beta, key_padding_mask, R, h=h, c=c)
    return _run(_LSTM, backend, z, k, v, beta, key_padding_mask, R, h, c)


def _check(operator: str, gates: int, z, k, v, beta, key_padding_mask, R, **vectors: Tensor | None) -> None:
    """Raises ValueError, which names the tensor, for a wrong shape, type or device."""
    check_tensor(operator, "v", v, 4)
    check_tensor(operator, "z", z, 4, v.device)
    if z.shape[2] % gates:
        fail(operator, "z", f"of {z.shape[2]} heads", f"a multiple of {gates}")
    heads = "H" if gates == 1 else f"{gates}H"
    sizes = dict(zip(("B", "L", heads, "d"), z.shape, strict=True)) | {"H": z.shape[2] // gates}
    rows, states = f"B L {heads} d", {"R": (R, f"B {heads} d d")}
    states |= {name: (x, "B H d") for name, x in vectors.items()}
    states = {name: pair for name, pair in states.items() if pair[0] is not None}
    check_shapes(operator, v.device, sizes, k=(k, rows), v=(v, rows), beta=(beta, f"B L {heads}"), **states)
    if key_padding_mask is not None:
        check_mask(operator, key_padding_mask, sizes, "B L", v.device)


def _run(operator: Operator, backend: str, *call: Tensor | None) -> tuple[Tensor, ...]:
    dtype = state_type(call[0].dtype)
    with without_autocast(call[0]):
        return operator(backend, *(x if x is None or x.dtype == torch.bool else x.to(dtype) for x in call))


def _rnn_loop(z, k, v, beta, pads, R, y) -> tuple[Tensor, ...]:
    batch, _, heads, d = z.shape
    R = z.new_zeros(batch, heads, d, d) if R is None else R
    y = z.new_zeros(batch, heads, d) if y is None else y
    outputs = []
    for t, (z_t, *written) in enumerate(positions(z, k, v, beta)):
        R = unless_pad(pads, t, R, delta(R, *written))
        out = z_t + read(R, y.softmax(-1))
        y = unless_pad(pads, t, y, out)
        outputs.append(out)
    return torch.stack(outputs, 1) if outputs else z, R, y


def _lstm_loop(z, k, v, beta, pads, R, h, c) -> tuple[Tensor, ...]:
    batch, _, heads, d = z.shape
    R = z.new_zeros(batch, heads, d, d) if R is None else R
    h, c = (z.new_zeros(batch, heads // LSTM_GATES, d) if x is None else x for x in (h, c))
    outputs = []
    for t, (z_t, *written) in enumerate(positions(z, k, v, beta)):
        R = unless_pad(pads, t, R, delta(R, *written))
        u, i, o = (z_t + read(R, h.softmax(-1).repeat(1, LSTM_GATES, 1))).chunk(LSTM_GATES, 1)
        i = i.sigmoid()
        cell = i * u + (1 - i) * c
        out = o.sigmoid() * cell
        h, c = unless_pad(pads, t, h, out), unless_pad(pads, t, c, cell)
        outputs.append(out)
    return torch.stack(outputs, 1) if outputs else z[:, :, : heads // LSTM_GATES], R, h, c


def positions(*rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yields the positions of tensors (B, L, ...), one after another.

    Each slice would allocate a gradient of all L positions, so L slices would cost L^2; ``unbind`` has one gradient for
    all.
    """
    return zip(*(x.unbind(1) for x in rows), strict=True)


def delta(R: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """Computes R + beta (v - R k) k^T for one position: R (B, H, d_key, d_value), k and v (B, H, d), beta (B, H)."""
    u = beta.unsqueeze(-1) * (v - read(R, k))
    return R + k.unsqueeze(-1) * u.unsqueeze(-2)


def read(R: Tensor, x: Tensor) -> Tensor:
    """Computes R x for every batch row and head."""
    return (x.unsqueeze(-2) @ R).squeeze(-2)


def unless_pad(pads: Tensor | None, t: int, before: Tensor, after: Tensor) -> Tensor:
    """Returns ``before`` in the rows (B, ...) whose position t is padding, and ``after`` in the others."""
    return after if pads is None else torch.where(pads[:, t].view(-1, *[1] * (after.dim() - 1)), before, after)


def _kernel(name: str, gates: int, vectors: int, kept: tuple[bool, ...]) -> Kernel:
    """Describes a compiled recurrence whose state consists of R and ``vectors`` vectors.

    The operator returns out, the states, and for each entry of ``kept`` a further tensor that the backward pass needs.
    If the entry is True, this tensor has a vector for each gate of each head, otherwise one for each head.
    """

    def states(k: Tensor) -> list[Tensor]:
        batch, _, heads, d = k.shape
        return [k.new_empty(batch, heads, d, d), *(k.new_empty(batch, heads // gates, d) for _ in range(vectors))]

    def fake(z, k, *others):
        rows, d = k[:, :, : k.shape[2] // gates], k.shape[3]
        return new_rows(rows, d), *states(k), *(new_rows(k if every else rows, d) for every in kept)

    def fake_backward(*arguments):
        k, _, beta, *_ = arguments[-4 - vectors :]
        return *(new_rows(k, k.shape[3]) for _ in range(3)), new_rows(beta, 1).squeeze(3), *states(k)

    def save(ctx, inputs, output) -> None:
        out, last_R, *more, written = output[:2] + output[2 + vectors :]
        ctx.has_state = [x is not None for x in inputs[5:]]
        ctx.save_for_backward(out, *more, last_R, written, *inputs[1:5], *inputs[6:])
        ctx.mark_non_differentiable(*more, written)

    def differentiate(ctx, *gradients):
        backward = getattr(torch.ops.fwp, f"{name}_backward")
        back = backward(*gradients[: 2 + vectors], *ctx.saved_tensors)
        return *back[:4], None, *(x if has else None for x, has in zip(back[4:], ctx.has_state, strict=True))

    return Kernel(
        name, fake, fake_backward, save, differentiate, cuda_types=(torch.float32,),
        cuda_refusal="cuda_recurrence_refusal", sizes=lambda z, *others: (z.shape[-1],), results=2 + vectors,
    )  # fmt: skip


_RNN = Operator("the recurrence", native=_kernel("recur", 1, 1, (True,)), reference=InPyTorch(_rnn_loop))
# The backward pass needs the cells of the net, the values of every gate, and what was written to every gate's matrix.
_LSTM = Operator(
    "the recurrence of the Delta LSTM",
    native=_kernel("recur_lstm", LSTM_GATES, 2, (False, True, True)),
    reference=InPyTorch(_lstm_loop),
)
