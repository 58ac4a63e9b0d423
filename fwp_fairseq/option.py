"""Defines a row of the table of options, and the base class of a site's options, which memories read.

Each memory defines the rows of the options that choose it; :mod:`.options` combines them with all others.
"""

from typing import Any, NamedTuple

from .feature_maps import FeatureMap, RandomFeatures, build_feature_map, width_for

# The attention sites of a Transformer, with their names in help texts.
SITES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
TRANSLATION_SITES = tuple(SITES)
# The largest beta of each range; the smallest is 0.
BETA_RANGES = {"0-1": 1, "0-2": 2}
# For each normaliser, (normalize_features, normalize_output) of the operator. With l2, features are normalised to
# length 1 before the operator.
NORMALIZERS = {
    "attention": (False, True),
    "sum": (True, False),
    "both": (True, True),
    "none": (False, False),
    "l2": (False, False),
}
# For each rule, the normaliser that "auto" chooses, which is that of the rule's paper.
USUAL_NORMALIZERS = {"sum": "attention", "delta": "sum", "gated": "attention", "gated_delta": "l2"}


def side_of(site: str) -> str:
    """Returns the side of the model that has the site, ``encoder`` or ``decoder``."""
    return "encoder" if site == "encoder" else "decoder"


def hyphens(name: str) -> str:
    """Returns the name of an option in flags, with hyphens."""
    return name.replace("_", "-")


class Option(NamedTuple):
    """One row of the table.

    Attributes:
        name: the name in :class:`Options` and in Python. On the command line it has hyphens: ``--fwp-NAME`` for all
            sites, and ``NAME=VALUE`` after the kind of one site.
        title: the name in sentences.
        default: the value if none is given. The help says what None means for a number.
        values: each value with its effect; None for a positive whole number.
        help: the effect of the option.
        sites: the sites that have the option. An option of a single site has no flag for all sites.
        per_site: True if sites can have different values.
        of_softmax: True if softmax attention has the option.
        kept: when the description in a checkpoint contains it: ``always``, ``if chosen`` (if it does not have its
            default), or ``never``.
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
        """Returns a description of the valid values if this value is not one of them; otherwise None."""
        if self.values is None:
            fits = value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)
            return None if fits else "a whole number, 1 or more"
        return None if value in list(self.values) else f"one of {', '.join(self.values)}"


class Contradiction(NamedTuple):
    """An option that contradicts another one, or the site.

    Attributes:
        options: the name of the option, and of the option that it contradicts, if any.
        why: the reason.
        expected: the possible values of the first option.
    """

    options: tuple[str, ...]
    why: str
    expected: str


class Options:
    """Holds the options of one site; :class:`.options.SiteOptions` has a field for each row of the table.

    Attributes:
        memory: the memory class that the options choose.
    """

    memory: Any

    @property
    def is_softmax(self) -> bool:
        return self.feature_map == "softmax"

    @property
    def chosen_normalizer(self) -> str:
        """Returns the normaliser, with ``auto`` resolved.

        ``auto`` chooses ``none`` instead of ``attention`` if there is no denominator z . phi(q): with an output norm,
        which replaces it, and in memories that do not sum the keys.
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
        """Returns d_dot, the number of features, for heads of width ``d_key``."""
        return self.d_dot or width_for(self.feature_map, d_key)

    def build_feature_map(self, d_key: int, heads: int) -> FeatureMap:
        phi = build_feature_map(self.feature_map, d_key, self.d_dot, heads=heads)
        if isinstance(phi, RandomFeatures):
            phi.redraws = self.directions == "redrawn"
        return phi
