"""Softmax attention in decoding, where several queries read the same source.

Query t reads all positions j of its source that are not padding:

    y_t = sum_j w_tj v_j,  w_tj = exp(q_t . k_j) / sum_i exp(q_t . k_i)

There are two implementations. ``native`` is compiled for CPUs, in float32 and float64. It reads each key and value once
for all queries of a source; general matrix products take about three times as long for the few queries of a beam.
``reference`` computes the products in PyTorch, for any dtype and device. Only ``reference`` has a gradient.
"""

import torch
from torch import Tensor

from .._operator import InPyTorch, Kernel, Operator, new_rows
from ..numerics import state_type
from .checks import check_mask, check_shapes, check_tensor, fail


def read_source(
    q: Tensor, keys: Tensor, values: Tensor, *, key_padding_mask: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """Computes y of the equation above, (N, T, H, d_value), in the dtype of q, which all tensors share.

    Args:
        q: (N, T, H, d_key), the queries of each source, already scaled.
        keys, values: (N, H, d_key, S) and (N, H, S, d_value).
        key_padding_mask: (N, S), True at positions that are not read. A query that can read nothing gets NaN.
        backend: auto, native, chunked or reference; the last two are the same PyTorch code.

    Raises:
        ValueError: a tensor has a wrong shape, type or device, or the source is empty.
        NotImplementedError: ``native`` does not support these inputs; the message lists every reason.

    Cost per query and head: S (d_key + d_value) multiplications.
    """
    check_tensor("read_source", "values", values, 4)
    check_tensor("read_source", "q", q, 4, values.device)
    sizes = {"N": q.shape[0], "H": q.shape[2], "d_key": q.shape[3], "S": values.shape[2], "d_value": values.shape[3]}
    check_shapes("read_source", q.device, sizes, keys=(keys, "N H d_key S"), values=(values, "N H S d_value"))
    for name, x in {"keys": keys, "values": values}.items():
        if x.dtype != q.dtype:
            fail("read_source", name, f"of type {x.dtype}", f"q's type, {q.dtype}")
    if not sizes["S"]:
        fail("read_source", "values", f"of shape {tuple(values.shape)}", "at least one position")
    if key_padding_mask is not None:
        check_mask("read_source", key_padding_mask, sizes, "N S", q.device)
    return OPERATOR(backend, q, keys, values, key_padding_mask)


def source_weights(q: Tensor, keys: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Computes the weights w, (N, H, T, S), from arguments of :func:`read_source`; float32 for half precision."""
    scores = q.transpose(1, 2) @ keys
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask[:, None, None], float("-inf"))
    return scores.softmax(-1, dtype=state_type(scores.dtype))


def _in_pytorch(q: Tensor, keys: Tensor, values: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    weights = source_weights(q, keys, key_padding_mask)
    return (weights.type_as(values) @ values).transpose(1, 2)


class _Kernel(Kernel):
    def unsupported_reasons(self, q: Tensor, *others: Tensor | None) -> list[str]:
        tracked = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, *others))
        return [f"the kernel of {self.name} has no gradient"] if tracked else super().unsupported_reasons(q)


OPERATOR = Operator(
    "the softmax of a source",
    native=_Kernel("read_source", lambda q, keys, values, mask: new_rows(q, values.shape[3])),
    reference=InPyTorch(_in_pytorch),
)
