"""The projections of multi-head attention, which the layers and most attention modules for fairseq share."""

import math
from functools import partial

import torch
from torch import Tensor, nn

from ..memories.start import start, xavier
from .short_convolution import CONVOLVED, History, ShortConvolution


def head_width(embed_dim: int, num_heads: int) -> int:
    """Returns d_key; raises ValueError if the heads cannot share the width equally."""
    if num_heads < 1 or embed_dim % num_heads:
        raise ValueError(f"embed_dim = {embed_dim} is not divisible by num_heads = {num_heads}")
    return embed_dim // num_heads


class Projections(nn.Module):
    """Projects inputs to q, k and v of each head, and the outputs of the heads to the result.

    A subclass provides ``forward``. Its constructor creates its other modules and then calls :meth:`start_projections`.

    Parameters: q_proj, k_proj, v_proj and out_proj with bias, named and initialised as in fairseq's attention; with
    ``conv_size``, those of the short convolutions ``q_conv``, ``k_conv`` and ``v_conv``.

    Args:
        embed_dim: width of input and output.
        num_heads: number of heads; d_key = d_value = embed_dim / num_heads.
        causal: True if each position reads only itself and earlier positions; there is no source then.
        source_dim: width of the input of keys and values; embed_dim by default.

    Raises:
        ValueError: embed_dim is not divisible by num_heads, source_dim is below 1, or source_dim differs
            from embed_dim in causal attention.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, causal: bool, source_dim: int | None = None):
        super().__init__()
        self.head_dim = head_width(embed_dim, num_heads)
        if causal and source_dim not in (None, embed_dim):
            raise ValueError(f"source_dim = {source_dim} contradicts causal = True, which has no source; expected None")
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.source_dim, self.causal = embed_dim if source_dim is None else source_dim, causal
        if self.source_dim < 1:
            raise ValueError(f"source_dim = {source_dim}, expected at least 1")
        # The gain of the Xavier initialisation of q, k and v, as in fairseq: smaller if all three have the same input
        # width.
        self.gain = 1 / math.sqrt(2) if self.source_dim == embed_dim else 1.0
        self.k_proj = nn.Linear(self.source_dim, embed_dim)
        self.v_proj = nn.Linear(self.source_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def start_projections(self, conv_size: int | None = None) -> None:
        """Initialises the projections, now and at each reset, and adds convolutions if ``conv_size`` is given."""
        for name in CONVOLVED:
            conv = None if conv_size is None else ShortConvolution(self.embed_dim, conv_size, self.causal)
            self.register_module(f"{name}_conv", conv)
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            start(projection, partial(xavier, gain=self.gain))
        start(self.out_proj, _xavier_with_zero_bias)

    def project(self, name: str, x: Tensor, pads: Tensor | None = None, history: History | None = None) -> Tensor:
        """Projects inputs x, in the caller's layout, to q, k or v, (B, L, H, d_key).

        Args:
            name: ``q``, ``k`` or ``v``.
            x: (B, L, width), or another order that :meth:`swap_layout` converts.
            pads: (B, L), True at padding; only convolutions need it.
            history: ``history[name]`` holds the latest projections before x, which causal convolutions read; it is
                absent before the first position. The call replaces it with what the next call needs.
        """
        y, conv = self.get_submodule(f"{name}_proj")(x), getattr(self, f"{name}_conv")
        if conv is not None:
            y, after = conv(self.swap_layout(y), (history or {}).get(name), pads)
            y = self.swap_layout(y)
            if after is not None and history is not None:
                history[name] = after
        # The heads are split in the layout of the projection, so that its gradient has this layout too.
        return self.swap_layout(y.unflatten(-1, (self.num_heads, self.head_dim)))

    def swap_layout(self, x: Tensor) -> Tensor:
        """Converts a tensor from the layout of the caller to (B, L, ...), or back; here both are the same."""
        return x

    def checked_inputs(self, x: Tensor, source: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns x and what is written, which is the source or x itself.

        NaN and infinity at the padding of what is written become 0, because zero times NaN is NaN in gradients.

        Raises ValueError if x, source or mask has a wrong shape or dtype, or a source is given to causal attention.
        """
        if source is not None and self.causal:
            raise ValueError("source is given to causal attention, expected None: it writes its own input")
        self.check_input("x", x, self.embed_dim)
        written = x if source is None else source
        self.check_input("source", written, self.source_dim)
        if written.shape[0] != x.shape[0]:  # len() of a tensor would fix the batch of an exported graph
            raise ValueError(f"source is of {written.shape[0]} rows, expected as many as x, {x.shape[0]}")
        self.check_mask(mask, written)
        if mask is not None:
            written = written.masked_fill(mask[..., None] & ~written.isfinite(), 0)
        return written if source is None else x, written

    def check_read(self, x: Tensor, state: tuple | None) -> None:
        """Raises ValueError if this attention cannot ``read`` from the state with x."""
        if self.causal:
            raise ValueError("read needs causal=False; causal attention writes each position before it reads")
        if state is None:
            raise ValueError("state is None, expected the state that forward returned")
        self.check_input("x", x, self.embed_dim)

    @staticmethod
    def check_input(name: str, x: Tensor, width: int) -> None:
        """Raises ValueError, which names the tensor, unless x has three dimensions and its last one is ``width``."""
        if x.dim() != 3 or x.shape[2] != width:
            raise ValueError(f"{name} is of shape {tuple(x.shape)}, expected 3 dimensions, the last one of {width}")

    def check_mask(self, mask: Tensor | None, source: Tensor) -> None:
        """Raises ValueError unless a padding mask is bool, has the shape (B, S) of the source, and is on its device."""
        if mask is None:
            return
        shape, given, device = tuple(self.swap_layout(source).shape[:2]), isinstance(mask, Tensor), source.device
        if not given or (mask.dtype, tuple(mask.shape), mask.device) != (torch.bool, shape, device):
            actual = f"{mask.dtype} {tuple(mask.shape)} on {mask.device}" if given else type(mask).__name__
            raise ValueError(f"key_padding_mask is {actual}, expected torch.bool {shape}, True at padding, on {device}")


def _xavier_with_zero_bias(linear: nn.Linear) -> None:
    xavier(linear)
    nn.init.zeros_(linear.bias)
