"""A row of the table of options, and the values of the options of a site as memories read them.

Each memory has the rows of the options that choose it; :mod:`.options` joins them with all others.
"""

from typing import Any, NamedTuple

from .feature_maps import FeatureMap, RandomFeatures, build_feature_map, width_for

# The sites of attention in a Transformer, and their names in help texts.
SITES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
# The largest beta of each range; the smallest is 0.
BETA_RANGES = {"0-1": 1, "0-2": 2}
# Name to (normalize_features, normalize_output) of the operator; features of length 1 are made before it.
NORMALIZERS = {
    "attention": (False, True),
    "sum": (True, False),
    "both": (True, True),
    "none": (False, False),
    "l2": (False, False),
}
# What "auto" stands for: the normaliser that the paper uses with the rule.
USUAL_NORMALIZERS = {"sum": "attention", "delta": "sum", "gated": "attention", "gated_delta": "l2"}


class Option(NamedTuple):
    """One row of the table.

    Attributes:
        name: in :class:`Options` and Python; with hyphens on the command line, ``--fwp-NAME`` for all sites, and
            ``NAME=VALUE`` after the kind of one site.
        title: what sentences call it.
        default: its value if none is given. The help says what None means for a number.
        values: each value with what it does; None for a whole number from 1 on.
        help: what the option does.
        sites: where it means something. An option of one site has no flag for all.
        per_site: whether sites can have values of their own.
        of_softmax: whether it means something to softmax attention.
        kept: whether the description in a checkpoint names it: ``always``, if it is not the default, or ``never``.
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
        """Whether there is a flag for all sites."""
        return len(self.sites) > 1

    def expected(self, value) -> str | None:
        """Returns the values that the option can have, if this is none of them; otherwise None."""
        if self.values is None:
            fits = value is None or (isinstance(value, int) and not isinstance(value, bool))
            return None if fits else "a whole number"
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
    """The values of the options of one site; :class:`.options.SiteOptions` has a field for each row of the table.

    Attributes:
        memory: the class of memory that they choose.
    """

    memory: Any

    @property
    def is_softmax(self) -> bool:
        return self.feature_map == "softmax"

    @property
    def chosen_normalizer(self) -> str:
        """The normaliser, with "auto" resolved: ``attention`` is replaced by ``none`` where there is no denominator.

        An output norm replaces the denominator, and some memories accumulate no keys for it.
        """
        if self.normalizer != "auto":
            return self.normalizer
        usual = USUAL_NORMALIZERS[self.update_rule]
        has_denominator = self.output_norm == "none" and self.memory.accumulates_keys
        return "none" if usual == "attention" and not has_denominator else usual

    @property
    def normalizes(self) -> tuple[bool, bool]:
        """(normalize_features, normalize_output) of the operator."""
        return NORMALIZERS[self.chosen_normalizer]

    def width(self, d_key: int) -> int:
        """d_dot of heads of this width."""
        return self.d_dot or width_for(self.feature_map, d_key)

    def build_feature_map(self, d_key: int, heads: int) -> FeatureMap:
        phi = build_feature_map(self.feature_map, d_key, self.d_dot, heads=heads)
        if isinstance(phi, RandomFeatures):
            phi.redraws = self.directions == "redrawn"
        return phi
