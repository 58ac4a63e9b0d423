"""Reads a window of the latest positions by softmax, and all earlier ones through fast weights.

With a window of w positions, the query at position p of a head reads the positions p - w < j <= p with the weights e_j
= exp(q_p . k_j / sqrt(d_key) - c), where c is the largest q_p . k_j / sqrt(d_key) among these positions. The output is

    y_p = (sum_j e_j v_j + g N_p) / (sum_j e_j + g n_p),  g = exp(min(u . q_p + b, 30))

where N_p = W phi(q_p) and n_p = z . phi(q_p), with W and z of the positions before the window
(:mod:`fwp_fairseq.memories.window`); both are 0 if there are no such positions.

There are two implementations. ``native`` is compiled for CPUs, in float32 and float64. It keeps only its inputs for the
backward pass, and can read keys and values from a decoder's cache, in which ``places`` says where each position is.
``reference`` computes blocks of w queries as matrix products in PyTorch, for any dtype and device.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .._operator import InPyTorch, Kernel, Operator, new_rows
from ..feature_maps.favor import LARGEST_EXPONENT
from ..numerics import without_autocast
from .checks import check_mask, check_shapes, check_tensor, fail


def read_window(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sums: Tensor | None,
    u: Tensor,
    bias: Tensor,
    *,
    size: int,
    key_padding_mask: Tensor | None = None,
    places: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Computes y of the equation above, (B, T, H, d), in the dtype of q, which all tensors share.

    Args:
        q: (B, T, H, d), the queries at the last T of S positions.
        k, v: (B, S, H, d); if ``places`` is given, the storage, (P, 1, H, d).
        sums: (B, F, H, d + 1), N and, in the last column, n for the last F queries; None if nothing has left the
            window.
        u, bias: (H, d) and (H,), the u and b of the gain g.
        size: w.
        key_padding_mask: (B, S), True at positions that are not read; k and v have to be finite there too. If a query
            has no position to read, its output is arbitrary.
        places: (B, S) int32, the place of position j of row b in the storage; not differentiable.
        backend: auto, native, chunked or reference; the last two are the same PyTorch code.

    Raises:
        ValueError: a tensor has a wrong shape, type or device.
        NotImplementedError: ``native`` does not support these inputs; the message lists every reason.

    Cost per query and head: 2 w d multiplications; in PyTorch up to 4 w d.
    """
    _check(q, k, v, sums, u, bias, size, key_padding_mask, places)
    with without_autocast(q):
        return OPERATOR(backend, q, k, v, sums, u, bias, key_padding_mask, places, size)


def _check(q, k, v, sums, u, bias, size: int, key_padding_mask, places) -> None:
    """Raises ValueError, which names the tensor, for a wrong shape, type or device."""
    check_tensor("read_window", "v", v, 4)
    for name, x in {"q": q, "k": k, "sums": sums}.items():
        if name != "sums" or sums is not None:
            check_tensor("read_window", name, x, 4, v.device)
    batch, length, heads, d = q.shape
    stored, positions = k.shape[:2]
    if places is not None:
        check_tensor("read_window", "places", places, None, v.device)
        if places.dtype != torch.int32 or places.dim() != 2 or places.shape[0] != batch:
            fail("read_window", "places", f"{places.dtype} {tuple(places.shape)}", f"torch.int32 ({batch}, S)")
        positions = places.shape[1]
    sizes = {"B": batch, "S": positions, "H": heads, "d": d, "d+1": d + 1, "P": stored, "1": 1}
    rows, far = "B S H d" if places is None else "P 1 H d", {}
    if sums is not None:
        sizes["F"], far = sums.shape[1], {"sums": (sums, "B F H d+1")}
    check_shapes("read_window", v.device, sizes, k=(k, rows), v=(v, rows), **far, u=(u, "H d"), bias=(bias, "H"))
    if size < 1:
        fail("read_window", "size", size, "1 or more")
    if length > positions:
        holder = "k" if places is None else "places"
        fail("read_window", "q", f"of {length} positions", f"at most the {positions} of {holder}")
    if sums is not None and sums.shape[1] > length:
        fail("read_window", "sums", f"of {sums.shape[1]} positions", f"at most the {length} of q")
    if key_padding_mask is not None:
        check_mask("read_window", key_padding_mask, sizes, "B S", v.device)
    for name, x in {"k": k, "v": v, "sums": sums, "u": u, "bias": bias}.items():
        if x is not None and x.dtype != q.dtype:
            fail("read_window", name, f"of type {x.dtype}", f"q's type, {q.dtype}")


def _in_blocks(
    q: Tensor, k: Tensor, v: Tensor, sums: Tensor | None, u: Tensor, bias: Tensor, absent: Tensor | None,
    places: Tensor | None, w: int,
) -> Tensor:  # fmt: skip
    if not q.shape[1]:
        return torch.empty_like(q)
    if places is not None:
        # index_select refuses indices below 0, as the kernel does; brackets would count them from the end.
        k, v = (x.squeeze(1).index_select(0, places.flatten()).unflatten(0, places.shape) for x in (k, v))
    length, kv = q.shape[1], torch.cat([k, v], -1).transpose(1, 2)
    # Queries are taken in blocks, each with the positions that any of its queries reads.
    block = max(min(w, length), 1)
    span, added, missing = w + block - 1, -length % block, w - 1 + length - kv.shape[2]
    if length == 1 and missing > 0:  # a step reads all positions, fewer than w
        span, missing = kv.shape[2], 0
    queries = F.pad((q / math.sqrt(q.shape[-1])).transpose(1, 2), (0, 0, 0, added)).unflatten(2, (-1, block))
    if missing > 0 and absent is None:
        absent = torch.zeros(kv.shape[0], kv.shape[2], dtype=torch.bool, device=kv.device)
    kv = F.pad(kv[:, :, max(-missing, 0) :], (0, 0, max(missing, 0), added))
    k, v = kv.unfold(2, span, block).chunk(2, 3)  # (B, H, blocks, d, span)
    hidden = None
    if absent is not None:
        hidden = F.pad(absent[:, max(-missing, 0) :], (max(missing, 0), added), value=True)
        hidden = hidden.unfold(1, span, block)[:, None, :, None]
    if block > 1:  # query i of a block reads positions i .. i + w - 1 of its span
        outside = torch.ones(block, span, dtype=torch.bool, device=q.device)
        outside = outside.triu(w) | outside.tril(-1)
        hidden = outside if hidden is None else hidden | outside
    e = exponentials(queries @ k, hidden)
    near, total = ((x.flatten(2, 3)[:, :, :length]).transpose(1, 2) for x in (e @ v.mT, e.sum(-1, keepdim=True)))
    if sums is None:
        return near / total
    sums = F.pad(sums, (0, 0, 0, 0, length - sums.shape[1], 0))
    g = gain(q, u, bias)
    return (near + g * sums[..., :-1]) / (total + g * sums[..., -1:])


def exponentials(scores: Tensor, hidden: Tensor | None) -> Tensor:
    """Computes exp(score - largest score of the query), shaped as scores; arbitrary for a query that reads nothing."""
    if hidden is not None:
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    return (scores - scores.amax(-1, keepdim=True)).exp()


def gain(q: Tensor, u: Tensor, bias: Tensor) -> Tensor:
    """Computes the gain g, (B, T, H, 1), of queries (B, T, H, d)."""
    logits = torch.einsum("bthd,hd->bth", q, u) + bias
    return logits.clamp(max=LARGEST_EXPONENT).exp().unsqueeze(-1)


def _fake(q, *others):
    return new_rows(q, q.shape[3])


def _fake_backward(grad_out, q, k, v, sums, u, bias, *others):
    rows = (new_rows(x, x.shape[3]) for x in (q, k, v))
    grad_sums = q.new_empty(0) if sums is None else new_rows(sums, sums.shape[3])
    return *rows, grad_sums, *(x.new_empty(x.shape) for x in (u, bias))


def _save(ctx, inputs, output):
    *tensors, ctx.size = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, grad_out):
    *tensors, places = ctx.saved_tensors
    if places is not None:
        raise NotImplementedError("fwp::read_window has no derivative with places, the storage of a decoder")
    *rows, sums, u, bias = torch.ops.fwp.read_window_backward(grad_out, *tensors, ctx.size)
    return *rows, None if tensors[3] is None else sums, u, bias, None, None, None


KERNEL = Kernel("read_window", _fake, _fake_backward, _save, _differentiate)
OPERATOR = Operator("a window", native=KERNEL, reference=InPyTorch(_in_blocks))
