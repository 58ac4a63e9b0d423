"""Lists the options of attention, one row each: their names, their values, and the sites that have them.

The options of a site (:class:`SiteOptions`), fairseq's flags and YAML (:mod:`.config`), the arguments of the layers,
``fwp archs``, error messages and the tables of the documentation are made from :data:`OPTIONS`. To add an option, add a
row, and use its value where a memory or a layer is built; :mod:`.contradictions` says what it cannot be combined with.
The rows of options that choose a memory are in the class of that memory.
"""

from dataclasses import dataclass, field, make_dataclass

from .feature_maps import FEATURE_MAPS
from .memories import MEMORIES, Matrix, Memory, every_option
from .ops.call import CORRECTING
from .option import BETA_RANGES, NORMALIZERS, SITES, TRANSLATION_SITES, USUAL_NORMALIZERS, Option, Options, hyphens

__all__ = ["BETA_RANGES", "MAPS", "NORMALIZERS", "OPTIONS", "SITES", "TRANSLATION_SITES", "Option", "SiteOptions"]

# The identity map is for callers that compute features themselves, and is useless as a flag.
MAPS = {name: cls for name, cls in FEATURE_MAPS.items() if name != "identity"}

OPTIONS: dict[str, Option] = {option.name: option for option in (
    Option(
        "feature_map", "feature map", "dpfp",
        {"softmax": "fairseq's own attention"} | {name: cls.title for name, cls in MAPS.items()},
        "the feature map phi; fast weights have no attention weights, so attention dropout applies to the values that "
        "are read",
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
            "sum": "linear attention", "delta": "moves the key's old value towards the new one, by a learned gate",
            "gated": "a learned gate makes all earlier content decay",
            "gated_delta": "delta, with decay by a second gate",
        },
        "how a key-value pair is written into the fast weights",
        kept="always",
    ),
    Option(
        "normalizer", "normaliser", "auto",
        {
            "auto": ", ".join(f"{normalizer} for the rule {rule}" for rule, normalizer in USUAL_NORMALIZERS.items())
            + " (none instead of attention if there is an output norm or a fast net)",
            "attention": "divides the output by z . phi(q)",
            "sum": "divides features by their sum", "both": "does both", "none": "divides nothing",
            "l2": "divides features by their length (L2 norm)",
        },
        "how features or outputs are normalised",
        kept="always",
    ),
    Option(
        "qk_norm", "norm of queries and keys", "none", {"none": "no norm", "l2": "L2 norm with a learned scale"},
        "divides queries and keys by their length before the feature map, and multiplies them by a learned scale per "
        "head; not for maps for which the scale cancels ("
        + ", ".join(name for name, cls in MAPS.items() if cls.homogeneity is not None) + ")",
    ),
    Option(
        "output_norm", "output norm", "none", {"none": "no norm", "rms": "RMSNorm"},
        "divides the output of each head by its root mean square, and multiplies it by learned weights, instead of "
        "dividing it by z . phi(q)",
    ),
    Option(
        "beta_range", "range of beta", "0-1",
        {
            "0-1": "a write with 1 replaces the old value of its key by the new one",
            "0-2": "above 1, the rest of the old value changes its sign (negative eigenvalues)",
        },
        f"the range of the write strength beta of the rules {' and '.join(CORRECTING)}; "
        "0-2 is meant for the normaliser l2",
    ),
    *every_option(),
    Option(
        "source_window", "source window", None, None,
        "with softmax attention, each decoding step reads only N positions of the source, around those that the "
        "previous step attended to, so that its time does not depend on the length; training and scoring read all "
        "(default: all)",
        sites=("cross",), of_softmax=True, kept="never",
    ),
    Option(
        "positions", "positions in the scores", "none",
        {"none": "only through the embeddings", "rotary": "queries and keys are rotated by their positions"},
        "how the scores of softmax attention depend on positions; with rotary they depend on the distance between "
        "query and key; in cross-attention, target positions are first multiplied by the ratio of source to target "
        "length in the training set",
        of_softmax=True,
    ),
    Option(
        "conv_size", "size of short convolutions", None, None,
        "adds learned depthwise convolutions of queries, keys and values in self-attention, over the latest N "
        "positions or, in the encoder, over N surrounding ones (N - 1 if N is even) (default: no convolutions)",
        sites=("encoder", "decoder"), of_softmax=True,
    ),
    Option(
        "directions", "directions of random features", "redrawn",
        {"redrawn": "resampled for each training update", "fixed": "always those of evaluation"},
        "the random directions of the maps favor and rfa",
        kept="never",
    ),
    Option(
        "passes", "passes through the source", "one",
        {
            "one": "all positions are written before any is read",
            "both-ways": "bidirectional: half of the heads go from left to right, the others from right to left",
        },
        "the order in which the source is written and read; both-ways suits rules whose writes depend on the order",
        sites=("encoder",),
    ),
    Option(
        "backend", "backend", "auto",
        {
            "auto": "the fastest one that supports the inputs", "native": "compiled",
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
class SiteOptions(_Fields, Options):
    """Holds the options of one site, by the names in :data:`OPTIONS`.

    If ``feature_map`` is softmax, the site has softmax attention, and options that are not ``of_softmax`` are unused.
    """

    @property
    def memory(self) -> type[Memory]:
        """Returns the memory class that an option chooses; by default, one matrix."""
        return next((memory for memory in MEMORIES if memory.chosen_by(self)), Matrix)

    def describe(self, d_key: int) -> str:
        """Returns a line with everything on which a checkpoint's weights depend; ``d_key`` is the width of a head."""
        values = vars(self)
        if not self.is_softmax:
            values = values | {"d_dot": self.width(d_key), "normalizer": self.chosen_normalizer}
            values |= self.memory.resolved(self)
        first, *others = [
            f"{hyphens(option.name)}={values[option.name]}"
            for option in OPTIONS.values()
            if option.of_softmax or not self.is_softmax
            if option.kept == "always" or (option.kept == "if chosen" and values[option.name] != option.default)
        ]
        return " ".join(["softmax" if self.is_softmax else first, *others])
