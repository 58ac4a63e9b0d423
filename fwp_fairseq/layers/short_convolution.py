"""Short convolutions over the queries, keys and values of self-attention."""

from collections import namedtuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from ..memories import MEMORIES, State
from ..numerics import state_type
from ..ops.state import registered
from ..pads import order_behind, ordered
from ..sharding import assign

# The projections that have a convolution.
CONVOLVED = ("q", "k", "v")
# The projections at the positions before a call, by the names in CONVOLVED: (B, size - 1, C).
History = dict[str, Tensor]


class ShortConvolution(nn.Conv1d):
    """Applies a depthwise convolution over positions (the short convolution of Gated DeltaNet, Yang et al. 2025).

        y_t = sum_i w_i x_{t - size + 1 + i}    (causal)
        y_t = sum_i w_i x_{t - size // 2 + i}   (symmetric, of odd size)

    with one weight w_i for each of the C coordinates, i = 0 .. size - 1, and x = 0 outside the sequence. A causal
    convolution skips padding, so that padding changes nothing; a symmetric one reads zeros there. It starts as the
    identity and has no bias.

    Args:
        width: C.
        size: number of positions that are summed; with an even size, a symmetric convolution sums one fewer.
        causal: True if a position reads only itself and earlier ones.
    """

    def __init__(self, width: int, size: int, causal: bool):
        size -= not causal and size % 2 == 0
        super().__init__(width, width, size, padding=0 if causal else size // 2, groups=width, bias=False)
        self.causal = causal

    def reset_parameters(self) -> None:
        (size,), (around,) = self.kernel_size, self.padding
        weight = torch.zeros(self.weight.shape)
        weight[:, :, around or size - 1] = 1
        assign(self.weight, weight)

    def forward(
        self, x: Tensor, before: Tensor | None = None, pads: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Convolves x over its positions.

        Args:
            x: (B, T, C).
            before: (B, size - 1, C), the inputs before the first position; None for zeros.
            pads: (B, T), True at padding.

        Returns:
            ``(y, after)``: y (B, T, C), and the last size - 1 inputs without padding; None if not causal.
        """
        if pads is not None:
            x = x.masked_fill(pads[..., None], 0)
        (size,) = self.kernel_size
        if not self.causal:
            return self._convolved(x), None
        before = x.new_zeros(x.shape[0], size - 1, x.shape[2]) if before is None else before.to(x.dtype)
        order = order_behind(pads)
        wide = torch.cat([before, x if order is None else ordered(x, order)], 1)
        if pads is None:
            after = wide[:, x.shape[1] :]
        else:
            count = pads.logical_not().sum(1, keepdim=True)
            after = ordered(wide, count + torch.arange(size - 1, device=x.device))
        y = self._convolved(wide)
        # A copy, because a view would keep the whole input in memory.
        return y if order is None else ordered(y, order.argsort(1)), after.to(state_type(x.dtype), copy=True)

    def _convolved(self, x: Tensor) -> Tensor:
        if not x.shape[1]:
            return x
        if self.causal and x.shape[1] == self.kernel_size[0]:  # one position, for which a convolution takes longer
            dtype = state_type(x.dtype)
            weight = self.weight[:, 0].T.contiguous()  # products with a transposed matrix take longer
            return (x.to(dtype) * weight.to(dtype)).sum(1, keepdim=True).to(x.dtype)
        if x.device.type != "cpu":
            return super().forward(x.transpose(1, 2)).transpose(1, 2)
        # As an image of one row, x already has its channels last, so conv2d copies nothing; conv1d would.
        image, weight = x.transpose(1, 2)[:, :, None], self.weight[:, :, None]
        y = conv2d(image, weight, padding=(0, *self.padding), groups=self.groups)
        return y[:, :, 0].transpose(1, 2)


def _with_history(state: type[State]) -> type[State]:
    fields = (*state._fields, *(f"before_{name}" for name in CONVOLVED))
    return registered(namedtuple(f"Convolved{state.__name__}", fields, module=__name__))


# For each memory's state, the state of a causal layer with convolutions: the memory's tensors, then the history.
STATES = {cls: _with_history(cls) for cls in dict.fromkeys(memory.State for memory in MEMORIES)}
globals().update({cls.__name__: cls for cls in STATES.values()})  # so that pickle finds them
