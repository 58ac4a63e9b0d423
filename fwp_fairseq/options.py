"""The options of attention, one row each: what they are called, which values they have, and where they mean something.

The options of a site (:class:`SiteOptions`), fairseq's flags and YAML (:mod:`.config`), the arguments of the layers,
``fwp archs``, error messages and the tables of the documentation are made of :data:`OPTIONS`. To add one, add its row,
and use it where a memory or a layer is built; :mod:`.contradictions` says what it cannot be combined with.
"""

from dataclasses import dataclass, field, make_dataclass
from typing import NamedTuple

from .feature_maps import FEATURE_MAPS, FeatureMap, RandomFeatures, build_feature_map, width_for

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
# The identity map is for callers who compute features themselves; it makes no sense as a flag.
MAPS = {name: cls for name, cls in FEATURE_MAPS.items() if name != "identity"}


class Option(NamedTuple):
    """One row of the table.

    Attributes:
        name: in :class:`SiteOptions` and Python; with hyphens on the command line, ``--fwp-NAME`` for all sites, and
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


_DECODER, _ENCODER = ("decoder",), ("encoder",)

OPTIONS: dict[str, Option] = {option.name: option for option in (
    Option(
        "feature_map", "feature map", "dpfp",
        {"softmax": "fairseq's own attention"} | {name: cls.title for name, cls in MAPS.items()},
        "the feature map phi; fast weights have no attention weights, so attention dropout applies to the retrieved "
        "values",
        of_softmax=True, kept="always",
    ),
    Option(
        "d_dot", "d_dot", None, None,
        "number of features per head: " + "; ".join(f"{name}: {cls.widths}" for name, cls in MAPS.items())
        + " (default: the map's natural width)",
        kept="always",
    ),
    Option(
        "update_rule", "update rule", "sum",
        {
            "sum": "linear attention", "delta": "the new value replaces the key's old one, by a learned strength",
            "gated": "a learned gate decays all earlier content", "gated_delta": "delta with decay by a second gate",
        },
        "how a key-value pair is written into the fast weights",
        kept="always",
    ),
    Option(
        "normalizer", "normaliser", "auto",
        {
            "auto": ", ".join(f"{normalizer} for {rule}" for rule, normalizer in USUAL_NORMALIZERS.items())
            + "; with an output norm or a fast net none takes the place of attention",
            "attention": "divides the output by z . phi(q)",
            "sum": "divides features by their sum", "both": "does both", "none": "divides nothing",
            "l2": "divides features by their length (L2 norm)",
        },
        "how features or outputs are normalised",
        kept="always",
    ),
    Option(
        "qk_norm", "norm of queries and keys", "none", {"none": "no norm", "l2": "L2 norm with a learned scale"},
        "queries and keys are divided by their length before the feature map, and multiplied by a learned scale of "
        "each head; not with maps for which the scale cancels ("
        + ", ".join(name for name, cls in MAPS.items() if cls.homogeneity is not None) + ")",
    ),
    Option(
        "output_norm", "output norm", "none", {"none": "no norm", "rms": "RMSNorm"},
        "the output of each head is divided by its root mean square and multiplied by learned weights, which replaces "
        "the division by z . phi(q)",
    ),
    Option(
        "beta_range", "range of beta", "0-1",
        {"0-1": "1 replaces the old value by the new one", "0-2": "allows negative eigenvalues"},
        "the range of the write strength beta of the rules delta and gated_delta; 0-2 is meant for the normaliser l2",
    ),
    Option(
        "fast_net", "fast net", "linear",
        {
            "linear": "one matrix", "rnn": "Delta RNN, a second matrix reads the previous output",
            "lstm": "Delta LSTM, three gates of two matrices each", "mlp": "Delta MLP, blocks of two matrices",
            "delta": "Delta-Delta Net, a matrix writes a second one",
            "fwp1991": "one matrix, to which tanh is applied after each write",
        },
        "the net that is written at each position; fwp1991 needs the update rule sum; rnn, lstm, mlp, delta and "
        "feedback need delta",
        sites=_DECODER,
    ),
    Option(
        "fast_net_depth", "blocks of the fast net mlp", None, None, "number of blocks of the fast net mlp (default: 1)",
        sites=_DECODER,
    ),
    Option(
        "recurrent", "feedback of the output", "none",
        {"none": "no feedback", "tanh": "through tanh", "softmax": "through softmax"},
        "the previous position's output, projected, is added to queries, keys, values and write strengths; with the "
        "fast net linear this is the Recurrent Delta Net",
        sites=_DECODER,
    ),
    Option(
        "window", "window", None, None,
        "the latest N positions are read by softmax attention, all earlier ones through fast weights; needs the update "
        "rule sum (default: none)",
        sites=_DECODER,
    ),
    Option(
        "source_window", "source window", None, None,
        "with softmax attention, each step of decoding reads only N positions of the source, around those that the "
        "previous step attended to, so that cross-attention takes the same time at any length; training and scoring "
        "read all (default: all)",
        sites=("cross",), of_softmax=True, kept="never",
    ),
    Option(
        "positions", "positions in the scores", "none",
        {"none": "only those of the embeddings", "rotary": "queries and keys are rotated by their positions"},
        "how scores of softmax attention depend on positions; with rotary they depend on the distance between query "
        "and key; in cross-attention, target positions are first scaled by the ratio of source to target length in the "
        "training set",
        of_softmax=True,
    ),
    Option(
        "conv_size", "size of short convolutions", None, None,
        "in self-attention, a learned depthwise convolution mixes the queries, keys and values of the latest N "
        "positions, in the encoder those of N surrounding positions, or N - 1 if N is even (default: no convolutions)",
        sites=("encoder", "decoder"), of_softmax=True,
    ),
    Option(
        "directions", "directions of random features", "redrawn",
        {"redrawn": "resampled for each update of a training", "fixed": "always those of evaluation"},
        "the random directions of the maps favor and rfa",
        kept="never",
    ),
    Option(
        "passes", "passes through the source", "one",
        {
            "one": "all positions are written before any is read",
            "both-ways": "bidirectional: half of the heads read from left to right, the others from right to left",
        },
        "the order in which the source is written and read; both-ways is for rules whose writes depend on the order",
        sites=_ENCODER,
    ),
    Option(
        "backend", "backend", "auto",
        {
            "auto": "the fastest that supports the inputs", "native": "compiled",
            "chunked": "matrix products in PyTorch", "reference": "slow loops that define the results",
        },
        "the implementation of the operators",
        per_site=False, kept="never",
    ),
)}  # fmt: skip


def _python_type(option: Option) -> object:
    kind = int if option.values is None else str
    return kind if option.default is not None else kind | None


_Fields = make_dataclass(
    "_Fields",
    [(option.name, _python_type(option), field(default=option.default)) for option in OPTIONS.values()],
    frozen=True,
)


@dataclass(frozen=True)
class SiteOptions(_Fields):
    """The options of one site, by the names of :data:`OPTIONS`.

    With ``feature_map`` softmax the site has fairseq's attention, and options that are not ``of_softmax`` are unused.
    """

    @property
    def is_softmax(self) -> bool:
        return self.feature_map == "softmax"

    @property
    def has_fast_net(self) -> bool:
        """Whether the site is recurrent, so that training computes one position after the other."""
        return self.fast_net != "linear" or self.recurrent != "none"

    @property
    def chosen_normalizer(self) -> str:
        """The normaliser, with "auto" resolved: an output norm and fast nets replace ``attention`` by ``none``."""
        if self.normalizer != "auto":
            return self.normalizer
        usual = USUAL_NORMALIZERS[self.update_rule]
        return "none" if usual == "attention" and (self.output_norm != "none" or self.has_fast_net) else usual

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

    def describe(self, d_key: int) -> str:
        """Names in one line everything a checkpoint's weights depend on."""
        values = vars(self)
        if not self.is_softmax:
            depth = (self.fast_net_depth or 1) if self.fast_net == "mlp" else None
            values = values | {
                "d_dot": self.width(d_key), "normalizer": self.chosen_normalizer, "fast_net_depth": depth
            }  # fmt: skip
        first, *others = [
            f"{option.name.replace('_', '-')}={values[option.name]}"
            for option in OPTIONS.values()
            if option.of_softmax or not self.is_softmax
            if option.kept == "always" or (option.kept == "if chosen" and values[option.name] != option.default)
        ]
        return " ".join(["softmax" if self.is_softmax else first, *others])
