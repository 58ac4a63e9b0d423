"""Named kinds of attention, each of which sets several options.

Flags, architectures, experiments and benchmarks write the attention of a site as a kind, followed by the options that
differ from it, separated by commas: ``delta,passes=both-ways``. Without a kind, the options change the attention that
the site has by default: ``passes=both-ways``. To add a kind, add a row to :data:`KINDS`.
"""

import difflib
from dataclasses import dataclass, field
from typing import NamedTuple

from .option import hyphens
from .options import MAPS, OPTIONS, SiteOptions


class Kind(NamedTuple):
    """One row of the table: a description of the kind, and its options that do not have their defaults."""

    description: str
    options: dict[str, str | int]


_DELTA = {"feature_map": "elu", "update_rule": "delta", "normalizer": "l2", "output_norm": "rms"}


def _net(description: str, **options: str) -> Kind:
    return Kind(f"{description}, with ELU+1", {"feature_map": "elu", "update_rule": "delta"} | options)


KINDS: dict[str, Kind] = {
    "softmax": Kind("softmax attention", {"feature_map": "softmax"}),
    "softmax-rotary": Kind(
        "softmax attention with rotary positions", {"feature_map": "softmax", "positions": "rotary"}
    ),
    **{name: Kind(f"linear attention, {cls.title}", {"feature_map": name}) for name, cls in MAPS.items()},
    "hedgehog-window": Kind(
        "softmax over a window of the latest 8 positions, Hedgehog for earlier ones",
        {"feature_map": "hedgehog", "window": 8},
    ),
    "delta": Kind("the delta rule with ELU+1, L2-normalised features and output RMSNorm (DeltaNet)", _DELTA),
    "gated-delta": Kind("delta with decay (Gated DeltaNet)", _DELTA | {"update_rule": "gated_delta"}),
    "gated": Kind("the gated rule (decay only), with DPFP", {"feature_map": "dpfp", "update_rule": "gated"}),
    "delta-rnn": _net("Delta RNN", fast_net="rnn"),
    "delta-lstm": _net("Delta LSTM", fast_net="lstm"),
    "delta-mlp": _net("Delta MLP", fast_net="mlp"),
    "delta-delta": _net("Delta-Delta Net", fast_net="delta"),
    "recurrent-delta": _net("Recurrent Delta Net", recurrent="tanh"),
    "fwp1991": Kind("the fast weight programmer of 1991, with ELU+1", {"feature_map": "elu", "fast_net": "fwp1991"}),
}

# The attention of each site of the architectures ``..._hybrid``; docs/results.md says how well they translate.
HYBRID = {"encoder": "delta,passes=both-ways", "decoder": "delta", "cross": "softmax"}
# The hybrid that translated passages best; docs/documents_results.md says how well. It did so without sinusoids.
PASSAGES = {
    "encoder": "gated-delta,passes=both-ways,conv-size=4",
    "decoder": "gated-delta,conv-size=4",
    "cross": "softmax-rotary",
}


def known_kind(name: str) -> Kind:
    """Returns the kind with this name; raises ValueError, which suggests the nearest name, if there is none."""
    if name not in KINDS:
        raise ValueError(f"unknown kind {name!r}{_nearest(name, KINDS)}, expected one of {', '.join(KINDS)}")
    return KINDS[name]


def _nearest(name: str, names) -> str:
    near = difflib.get_close_matches(name, names, 1)
    return f" (did you mean {near[0]}?)" if near else ""


@dataclass(frozen=True)
class Attention:
    """Describes the attention of a site in the form that flags use.

    Attributes:
        kind: the name of the kind; None for the attention that the site has by default.
        changes: the options that differ from it, by name.
    """

    kind: str | None = None
    changes: dict[str, str | int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Attention":
        """Parses ``KIND,OPTION=VALUE,...``, where the kind or the options may be left out.

        Raises:
            ValueError: a kind or option is unknown, an option is given twice, or a value is invalid.
        """
        parts = text.split(",")
        kind = None if "=" in parts[0] else parts.pop(0)
        if kind is not None:
            known_kind(kind)
        changes: dict[str, str | int] = {}
        for name, value in map(_option, parts):
            if name in changes:
                raise ValueError(f"{hyphens(name)} is given twice, expected once")
            changes[name] = value
        return cls(kind, changes)

    @classmethod
    def of(cls, options: SiteOptions) -> "Attention":
        """Returns the kind from which the fewest of these options differ, with these differences."""
        changes = {name: _changes(kind.options, options) for name, kind in KINDS.items()}
        # A kind with a number, such as a window of 8, cannot be written without it.
        possible = [name for name in KINDS if None not in changes[name].values()]
        kind = min(possible, key=lambda name: len(changes[name]))
        return cls(kind, changes[kind])

    def __str__(self) -> str:
        return ",".join([*filter(None, [self.kind]), *(f"{hyphens(n)}={value}" for n, value in self.changes.items())])

    def options(self, common: dict[str, str | int] | None = None) -> SiteOptions:
        """Returns the options of a site; ``common`` are the options for all sites without a kind."""
        common = common or {}
        if self.kind is not None:
            common = KINDS[self.kind].options | {n: x for n, x in common.items() if not OPTIONS[n].per_site}
        return SiteOptions(**common | self.changes)

    def changed(self, changes: dict[str, str | int]) -> "Attention":
        """Returns this attention with ``changes`` to its options; if it has a kind, the result has the nearest kind."""
        changed = Attention(self.kind, self.changes | changes)
        if self.kind is None:
            return changed
        options = changed.options()
        fits = not options.is_softmax or all(OPTIONS[name].of_softmax for name in changed.changes)
        return Attention.of(options) if fits else changed


def _option(part: str) -> tuple[str, str | int]:
    text, equals, value = part.partition("=")
    name = text.replace("-", "_")
    options = {name: option for name, option in OPTIONS.items() if option.per_site}
    if name in options and equals:
        value = int(value) if options[name].values is None and value.isdecimal() else value
        if (expected := options[name].expected(value)) is not None:
            raise ValueError(f"{part}: expected {expected}")
        return name, value
    if equals:
        names = [hyphens(name) for name in options]
        raise ValueError(f"unknown option {text!r}{_nearest(text, names)}, expected one of {', '.join(names)}")
    raise ValueError(f"{part!r} has no value, expected OPTION=VALUE")


def _changes(kind: dict[str, str | int], options: SiteOptions) -> dict[str, str | int | None]:
    """Returns the options that differ from those of a kind."""
    theirs = SiteOptions(**kind)
    names = [n for n, option in OPTIONS.items() if option.per_site and (option.of_softmax or not options.is_softmax)]
    changes = {n: getattr(options, n) for n in names if n != "normalizer" and getattr(options, n) != getattr(theirs, n)}
    normalizer = SiteOptions(**kind | changes).chosen_normalizer
    if not options.is_softmax and normalizer != options.chosen_normalizer:
        changes["normalizer"] = options.normalizer
    return changes
