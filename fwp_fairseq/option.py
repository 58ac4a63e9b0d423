"""Defines a row of the table of options, and the values of a site's options as memories read them.

Each memory has the rows of the options that choose it; :mod:`.options` joins them with all others.
"""

from typing import Any, NamedTuple

from .feature_maps import FeatureMap, RandomFeatures, build_feature_map, width_for

# The sites of attention in a Transformer, and their names in help texts.
SITES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
# The largest beta of each range; the smallest is 0.
BETA_RANGES = {"0-1": 1, "0-2": 2}
# Each normaliser by name, as (normalize_features, normalize_output) of the operator. With l2 the features have length 1
# before the operator gets them.
NORMALIZERS = {
    "attention": (False, True),
    "sum": (True, False),
    "both": (True, True),
    "none": (False, False),
    "l2": (False, False),
}
# The normaliser for which "auto" stands, by rule: that of the rule's paper.
USUAL_NORMALIZERS = {"sum": "attention", "delta": "sum", "gated": "attention", "gated_delta": "l2"}


class Option(NamedTuple):
    """One row of the table.

    Attributes:
        name: its name in :class:`Options` and in Python. The command line has hyphens in it: ``--fwp-NAME`` for all
            sites, and ``NAME=VALUE`` after the kind of one site.
        title: its name in sentences.
        default: its value if none is given. The help says what None means for a number.
        values: each value with its effect; None for a whole number from 1 on.
        help: the effect of the option.
        sites: those that have the option. An option of a single site has no flag for all sites.
        per_site: whether sites can have values of their own.
        of_softmax: whether softmax attention has the option.
        kept: when the description in a checkpoint names it: ``always``, ``if chosen`` (not the default), or ``never``.
    """

    name: str
    title: str
    default: str | int | None
    values: dict[str, str] | None
    help: str
    sites: tuple[str, ...] = tuple(SITES)
    per_site: bool = True
    of_softmax: bool = False
    kept: str = "if chosen"

    @property
    def is_common(self) -> bool:
        """Returns True if there is a flag for all sites."""
        return len(self.sites) > 1

    def expected(self, value) -> str | None:
        """Returns the possible values, in words, if this value is not one of them; otherwise None."""
        if self.values is None:
            fits = value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)
            return None if fits else "a whole number from 1 on"
        return None if value in list(self.values) else f"one of {', '.join(self.values)}"


class Contradiction(NamedTuple):
    """An option that contradicts another one, or the site.

    Attributes:
        options: its name, and that of the option that it contradicts, if there is one.
        why: the reason.
        expected: what the first option can be instead.
    """

    options: tuple[str, ...]
    why: str
    expected: str


class Options:
    """Holds the options of one site; :class:`.options.SiteOptions` has a field for each row of the table.

    Attributes:
        memory: the class of memory that the options choose.
    """

    memory: Any

    @property
    def is_softmax(self) -> bool:
        return self.feature_map == "softmax"

    @property
    def chosen_normalizer(self) -> str:
        """Returns the normaliser for which ``auto`` stands, or else the one that was chosen.

        Instead of ``attention``, ``auto`` stands for ``none`` where there is no denominator z . phi(q): with an output
        norm, which replaces it, and in memories that do not sum the keys.
        """
        if self.normalizer != "auto":
            return self.normalizer
        usual = USUAL_NORMALIZERS[self.update_rule]
        has_denominator = self.output_norm == "none" and self.memory.accumulates_keys
        return "none" if usual == "attention" and not has_denominator else usual

    @property
    def normalizes(self) -> tuple[bool, bool]:
        """Returns ``(normalize_features, normalize_output)`` for the operator."""
        return NORMALIZERS[self.chosen_normalizer]

    def width(self, d_key: int) -> int:
        """Returns d_dot, the number of features, of heads of width ``d_key``."""
        return self.d_dot or width_for(self.feature_map, d_key)

    def build_feature_map(self, d_key: int, heads: int) -> FeatureMap:
        phi = build_feature_map(self.feature_map, d_key, self.d_dot, heads=heads)
        if isinstance(phi, RandomFeatures):
            phi.redraws = self.directions == "redrawn"
        return phi
