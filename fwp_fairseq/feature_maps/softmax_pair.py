"""f(y) = [softmax(y), softmax(-y)] over the last dimension, which Hedgehog's features are made of.

It is compiled, in float32 and on the CPU in float64: one pass over y, where PyTorch takes four, and only f is kept for
the backward, dy = f+ (df+ - f+.df+) - f- (df- - f-.df-). Elsewhere PyTorch computes it.
"""

import torch
from torch import Tensor

from .. import _cuda_library, _extension, _transforms


def softmax_pair(y: Tensor) -> Tensor:
    """f of y (..., n), (..., 2 n) in its type."""
    if _COMPILED and serves_rows(y):
        return torch.ops.fwp.softmax_pair(y)
    return torch.cat([y.softmax(-1), (-y).softmax(-1)], dim=-1)


def serves_rows(x: Tensor) -> bool:
    """Whether the compiled functions of rows can be given x, now."""
    if x.shape[-1] == 0 or _transforms.unsupported_reasons():
        return False
    if x.device.type == "cuda":
        return x.dtype == torch.float32 and _cuda_serves(x.device)
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def _cuda_serves(device: torch.device) -> bool:
    if not _cuda_library.has_kernel("softmax_pair"):  # no CUDA library, or one that is older than these functions
        return False
    if not torch.cuda.is_available():
        return True
    return not _cuda_library.refusal("cuda_row_function_refusal", _cuda_library.index(device))


def rows_like(x: Tensor, width: int) -> Tensor:
    """An empty tensor of x's shape but this width, with rows in the order that x has in memory."""
    order = sorted(range(x.dim() - 1), key=x.stride, reverse=True)
    sizes = [x.shape[dim] for dim in order]
    back = sorted(range(len(order)), key=order.__getitem__)
    return x.new_empty(*sizes, width).permute(*back, -1)


def _differentiate(ctx, grad_f):
    _transforms.refuse_tangents("fwp::softmax_pair_backward", grad_f)
    (f,) = ctx.saved_tensors
    if not torch.is_grad_enabled():
        return torch.ops.fwp.softmax_pair_backward(grad_f, f)
    pairs = zip(f.chunk(2, -1), grad_f.chunk(2, -1), strict=True)
    up, down = (x * (dx - (x * dx).sum(-1, keepdim=True)) for x, dx in pairs)
    return up - down  # which has derivatives of its own


_COMPILED = _extension.status().cpu and hasattr(torch.ops.fwp, "softmax_pair")
if _COMPILED:
    torch.library.register_fake("fwp::softmax_pair", lambda y: rows_like(y, 2 * y.shape[-1]))
    torch.library.register_fake("fwp::softmax_pair_backward", lambda grad_f, f: rows_like(f, f.shape[-1] // 2))
    torch.library.register_autograd(
        "fwp::softmax_pair", _differentiate, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output)
    )
