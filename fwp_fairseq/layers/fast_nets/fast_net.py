"""The protocol of fast nets: what the slow net gives them, the state that they carry, and how positions follow."""

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ...ops.call import STRENGTHS, state_type
from ...ops.recurrence import keep
from ..site_config import SiteConfig
from .feedback import Feedback

# What the slow net gives for each position, by name: (B, L, H, width), before any activation; pads are 0.
Parts = dict[str, Tensor]
# Matrices and vectors of each batch row and head; None for zeros.
State = list[Tensor | None]


class Run(NamedTuple):
    """How some positions are gone through.

    Attributes:
        remember: (q, k, v, beta, W, run) -> (read, W): the site's delta rule with its feature map and normaliser.
        features: (q, k, run) -> (phi(q), phi(k)): the site's feature map and normaliser alone.
        pads: (B, L), True at positions that leave the state as it is; None if there are none.
        return_state: whether the state at the end is needed; if not, None may take the place of a matrix.
    """

    remember: Callable[..., tuple[Tensor, Tensor | None]]
    features: Callable[..., tuple[Tensor, Tensor]]
    pads: Tensor | None
    return_state: bool


class FastNet(nn.Module):
    """A network whose weights are written at each position by the slow net (Irie et al. 2021).

    A subclass says which ``parts`` it needs beside q, k, v and what the site's rule takes (beta, if it is the delta
    rule), which ``shapes`` its state has, and how it advances over some positions. This class projects the parts, adds
    what ``--fwp-recurrent`` feeds back, and packs the state into the one tensor that the callers carry, reorder and
    save.

    Parameters: ``slow`` gives the further parts, without bias; those of width 1 are write strengths and start at about
    a half, the others are initialised as the site's own projections of the same width. ``feedback`` is described
    there.

    Args:
        config: the options of the site.
        embed_dim: width of the input.
        heads: number of heads.
        d_key: width of queries, keys, values and output of a head.
        d_dot: features of the site's map.
        gain: of Xavier's initialisation.
    """

    name: ClassVar[str]

    def __init__(self, config: SiteConfig, embed_dim: int, heads: int, d_key: int, d_dot: int, gain: float):
        super().__init__()
        self.config, self.heads, self.d_key, self.d_dot, self.gain = config, heads, d_key, d_dot, gain
        self.build()
        self.further = self.parts()
        self.slow = nn.Linear(embed_dim, heads * sum(self.further.values()), bias=False) if self.further else None
        given = {"q": d_key, "k": d_key, "v": d_key} | dict.fromkeys(STRENGTHS[config.update_rule], 1) | self.further
        self.feedback = None if config.recurrent == "none" else Feedback(config.recurrent, heads, d_key, given)
        self.reset_parameters()

    def build(self) -> None:
        """Creates the modules of a subclass."""

    def parts(self) -> dict[str, int]:
        """The parts beside q, k, v and what the site's rule takes, with their widths."""
        return {}

    def shapes(self) -> list[tuple[int, ...]]:
        """Of the matrices and vectors that a head carries from one position to the next."""
        raise NotImplementedError

    def advance(self, run: Run, parts: Parts, state: State) -> tuple[Tensor, State]:
        """Writes and reads at L positions, one after the other; (out (B, L, H, d_key), state).

        What is read at a pad is unspecified, but finite.
        """
        raise NotImplementedError

    def reset_parameters(self) -> None:
        if self.slow is None:
            return
        weight, first = self.slow.weight.view(self.heads, -1, self.slow.in_features), 0
        for width in self.further.values():
            part = weight[:, first : first + width]
            if width == 1:
                nn.init.normal_(part, std=0.02)
            else:
                bound = self.gain * math.sqrt(6 / (self.slow.in_features + self.heads * width))
                nn.init.uniform_(part, -bound, bound)
            first += width

    @property
    def state_shapes(self) -> list[tuple[int, ...]]:
        """Of everything that is carried: the output at the last position is the last of it if it is fed back."""
        return self.shapes() + ([] if self.feedback is None else [(self.d_key,)])

    @property
    def state_size(self) -> int:
        """How many numbers a head carries."""
        return sum(map(math.prod, self.state_shapes))

    def unpack(self, packed: Tensor | None) -> State:
        """From (B, H, N, 1) to the matrices and vectors, which are views."""
        if packed is None:
            return [None] * len(self.state_shapes)
        pieces = packed.squeeze(-1).split([math.prod(shape) for shape in self.state_shapes], -1)
        return [piece.unflatten(-1, shape) for piece, shape in zip(pieces, self.state_shapes, strict=True)]

    def pack(self, state: State) -> Tensor:
        return torch.cat([x.flatten(2) for x in state], -1).unsqueeze(-1)

    def project(self, x: Tensor) -> Parts:
        """The further parts of an input (..., embed_dim), each (..., H, width)."""
        if self.slow is None:
            return {}
        pieces = self.slow(x).unflatten(-1, (self.heads, -1)).split(list(self.further.values()), -1)
        return dict(zip(self.further, pieces, strict=True))

    def forward(self, run: Run, parts: Parts, packed: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Goes through all positions from a packed state, None for the beginning.

        Returns:
            ``(out, packed)``: out (B, L, H, d_key) in the type of v, and the state if it is needed, else None.
        """
        dtype = parts["v"].dtype
        if run.pads is not None:
            parts = {name: part.masked_fill(run.pads[:, :, None, None], 0) for name, part in parts.items()}
        with torch.autocast(parts["v"].device.type, enabled=False):
            parts = {name: part.to(state_type(dtype)) for name, part in parts.items()}
            advance = self.advance
            if self.feedback is not None:
                advance = self.advance_with_feedback
                if packed is None:
                    packed = parts["v"].new_zeros(parts["v"].shape[0], self.heads, self.state_size, 1)
            out, state = advance(run, parts, self.unpack(packed))
            return out.to(dtype), self.pack(state) if run.return_state else None

    def advance_with_feedback(self, run: Run, parts: Parts, state: State) -> tuple[Tensor, State]:
        """The same, position by position; the last output is the last of the state, all of which is given."""
        *state, y = state
        outputs = []
        for t in range(parts["v"].shape[1]):
            now = {name: part[:, t : t + 1] for name, part in parts.items()}
            pads = None if run.pads is None else run.pads[:, t : t + 1]
            out, state = self.advance(run._replace(pads=pads, return_state=True), self.feedback(now, y), state)
            y = keep(pads, 0, y, out[:, 0])
            outputs.append(out)
        return torch.cat(outputs, 1) if outputs else torch.empty_like(parts["v"]), [*state, y]
