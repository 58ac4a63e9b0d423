"""The base class of fast nets: the parts that the slow net computes for them, states, and the loop over positions."""

import math
from collections.abc import Iterator
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ... import ops
from ...numerics import state_type, without_autocast
from ...ops.call import GATES
from ...ops.recurrence import unless_pad
from ...ops.state import State
from ...option import Contradiction, Option, Options, hyphens
from ...sharding import assign
from ..features import Features
from ..memory import Memory, Parts, Sizes
from ..start import start
from .feedback import ACTIVATIONS, Feedback


class Run(NamedTuple):
    """The options of one pass over some positions.

    Attributes:
        pads: (B, L), True at padding, which leaves the state as it is; None without padding.
        return_state: True if the state at the end is needed; otherwise None may be returned for a matrix.
    """

    pads: Tensor | None
    return_state: bool


class FastNet(Memory):
    """A causal network, the *fast net*, whose weights the *slow net* writes at each position (Irie et al. 2021).

    The slow net is the rest of the layer. Its projections compute the parts: q, k, v, the gates of the site's rule
    (beta for the delta rule), and those that a subclass names in :meth:`additional_widths`. A subclass also defines the
    named tuple ``State``, the :meth:`shapes` of its tensors, and :meth:`advance`. The last field of a state, ``fed``,
    is the output at the last position if the option ``recurrent`` feeds it back, and None otherwise.

    Parameters: ``slow`` projects to the additional parts, without bias. Parts of width 1 are logits of beta, which
    starts at about 1/2; the others are initialised like the site's projections of the same width. For ``feedback`` see
    :class:`.Feedback`.

    Attributes:
        name: the value of the option ``fast_net`` that chooses the net.
        title: the description in help texts.
        rule: the update rule that writes the matrices.
        own_options: the rows of options that only this net reads.
    """

    name: ClassVar[str | None] = None
    title: ClassVar[str]
    rule: ClassVar[str] = "delta"
    own_options: ClassVar[tuple[Option, ...]] = ()
    accumulates_keys = False

    @classmethod
    def nets(cls) -> list[type["FastNet"]]:
        """Returns all nets, the default first."""
        return sorted(FastNet.__subclasses__(), key=lambda net: net.name != "linear")

    @classmethod
    def options_read(cls) -> tuple[Option, ...]:
        nets, sites = cls.nets(), ("decoder",)
        others = "; ".join(f"by {net.rule}: {net.name}" for net in nets if net.rule != FastNet.rule)
        what = f"the net whose weights are written at each position, by the update rule {FastNet.rule} ({others})"
        feedback = (
            "adds a projection of the previous position's output to queries, keys, values and gates; with the fast net "
            "linear, this is the Recurrent Delta Net"
        )
        through = {"none": "no feedback"} | {name: f"through {name}" for name in ACTIVATIONS}
        return (
            Option("fast_net", "fast net", "linear", {net.name: net.title for net in nets}, what, sites=sites),
            *(row for net in (nets if cls is FastNet else [cls]) for row in net.own_options),
            Option("recurrent", "feedback of the output", "none", through, feedback, sites=sites),
        )

    @classmethod
    def chosen_by(cls, options: Options) -> str | None:
        return "fast_net" if options.fast_net == cls.name else None

    @classmethod
    def contradictions(cls, options: Options) -> Iterator[Contradiction]:
        option = cls.chosen_by(options)
        if options.update_rule != cls.rule:
            expected = f"{cls.rule}, or {hyphens(option)} {'none' if option == 'recurrent' else 'linear'}"
            why = f"all matrices of this net are written by the {cls.rule} rule"
            yield Contradiction(("update_rule", option), why, expected)
        if options.normalizes[1]:
            why = f"these nets accumulate no keys, which {options.chosen_normalizer} divides by"
            yield Contradiction(("normalizer", option), why, "auto, sum, l2 or none")
        if options.beta_range != "0-1":
            yield Contradiction(("beta_range", option), "beta of these nets lies in [0, 1]", "0-1")

    def __init__(self, options: Options, features: Features, sizes: Sizes):
        super().__init__(options, features, sizes)
        self.heads, self.d_key = sizes.heads, sizes.d_key
        self.build()
        self.widths = self.additional_widths()
        total = self.heads * sum(self.widths.values())
        self.slow = nn.Linear(sizes.source_dim, total, bias=False) if total else None
        own = dict.fromkeys(("q", "k", "v"), self.d_key) | dict.fromkeys(GATES[options.update_rule], 1)
        self.feedback = None
        if options.recurrent != "none":
            self.feedback = Feedback(options.recurrent, self.heads, self.d_key, [*(own | self.widths).values()])
        if self.slow is not None:
            start(self.slow, partial(_draw_parts, heads=self.heads, widths=[*self.widths.values()], gain=sizes.gain))

    def entries_by_options(self) -> dict[tuple[str, ...], set[str]]:
        net = {name for name in self.state_dict() if not name.startswith(("features.", "beta_proj.", "decay."))}
        return super().entries_by_options() | {("feature_map", *(row.name for row in self.options_read())): net}

    def build(self) -> None:
        """Creates the modules of a subclass."""

    def additional_widths(self) -> dict[str, int]:
        """Returns the widths of the parts other than q, k, v and the gates of the site's rule, by name."""
        return {}

    def shapes(self) -> list[tuple[int, ...]]:
        """Returns the shapes of a state's tensors for one head and one row, without ``fed``."""
        raise NotImplementedError

    def advance(self, run: Run, parts: Parts, state: State) -> tuple[Tensor, State]:
        """Writes and reads at L positions, one after another; returns out (B, L, H, d_key) and the state.

        ``parts`` are (B, L, H, width), before any activation, and 0 at padding. None in the state stands for zeros. The
        output at padding is unspecified, but finite.
        """
        raise NotImplementedError

    def state_shapes(self) -> State:
        fed = None if self.feedback is None else (self.heads, self.d_key)
        return self.State(*((self.heads, *shape) for shape in self.shapes()), fed)

    def parts(self, x: Tensor) -> Parts:
        parts = {} if self.beta_proj is None else {"beta": self.beta_proj(x).unsqueeze(-1)}
        if self.slow is not None:
            pieces = self.slow(x).unflatten(-1, (self.heads, -1)).split(list(self.widths.values()), -1)
            parts |= zip(self.widths, pieces, strict=True)
        return parts

    def attend(self, q, k, v, parts: Parts, *, key_padding_mask=None, state=None, return_state=False):
        pads, dtype, wide = key_padding_mask, v.dtype, state_type(v.dtype)
        parts = {"q": q, "k": k, "v": v} | parts
        if pads is not None:
            parts = {name: part.masked_fill(pads[:, :, None, None], 0) for name, part in parts.items()}
        with without_autocast(v):
            parts = {name: part.to(wide) for name, part in parts.items()}
            if self.feedback is not None:
                state = self.empty_state(v.shape[0], v) if state is None else state
                state = self.State(*(None if x is None else x.to(wide) for x in state))
                out, state = self._advance_with_feedback(pads, parts, state)
            else:
                state = self.State(*[None] * len(self.State._fields)) if state is None else state
                out, state = self.advance(Run(pads, return_state), parts, state)
        return out.to(dtype), state if return_state else None

    def _advance_with_feedback(self, pads: Tensor | None, parts: Parts, state: State) -> tuple[Tensor, State]:
        """Advances one position at a time, feeding back the output of the previous position."""
        fed, outputs = state.fed, []
        for t, position in enumerate(zip(*(part.split(1, 1) for part in parts.values()), strict=True)):
            run = Run(None if pads is None else pads[:, t : t + 1], return_state=True)
            now = dict(zip(parts, self.feedback(fed, *position), strict=True))
            out, state = self.advance(run, now, state)
            fed = unless_pad(run.pads, 0, fed, out[:, 0])
            outputs.append(out)
        return torch.cat(outputs, 1), state._replace(fed=fed)

    def write_and_read(
        self, features: Features, q: Tensor, k: Tensor, v: Tensor, logit: Tensor, W: Tensor | None, run: Run
    ) -> tuple[Tensor, Tensor | None]:
        """Writes a matrix with the delta rule and reads it; returns out (B, L, H, columns of W) and W.

        q and k come before the feature map; ``logit`` (B, L, H, 1) is the logit of beta.
        """
        out, state = ops.delta_rule(
            features.queries(q),
            features.keys(k),
            v,
            logit.sigmoid().squeeze(-1),
            feature_map=features.kernel_map,
            key_padding_mask=run.pads,
            normalize_features=features.normalize_features,
            normalize_output=False,
            initial_state=None if W is None else (W, None),
            return_state=run.return_state,
            backend=self.options.backend,
        )
        return out, None if state is None else state.W


def _draw_parts(slow: nn.Linear, heads: int, widths: list[int], gain: float) -> None:
    weight = torch.empty(slow.weight.shape, dtype=slow.weight.dtype, device=slow.weight.device)
    for width, part in zip(widths, weight.view(heads, -1, slow.in_features).split(widths, 1), strict=True):
        if width == 1:
            nn.init.normal_(part, std=0.02)
        else:
            bound = gain * math.sqrt(6 / (slow.in_features + heads * width))
            nn.init.uniform_(part, -bound, bound)
    assign(slow.weight, weight)
