"""Defines the rows of the language models' tables, from which the recipe and the tables are made."""

from dataclasses import dataclass

# The width of a head in the two sizes. It is the paper's in every preset, so that the paper's d_dot apply unchanged.
D_KEY = {"small": 16, "medium": 32}


@dataclass(frozen=True)
class Row:
    """One language model.

    Args:
        model: the paper's name of its attention.
        size: ``small`` or ``medium``.
        positions: whether absolute positions are added.
        state: what a segment begins with, in training and evaluation: with ``reset`` an empty state, with ``carried``
            the fast weights that the segment before it left, or the memory.
        mem_len: tokens that Transformer-XL remembers; None for the other models.
        length: tokens of a segment; None for those of the preset, which is also the most.
    """

    name: str
    model: str
    size: str
    feature_map: str
    d_dot: int | None = None
    update_rule: str | None = None
    normalizer: str | None = None
    positions: bool = True
    state: str = "reset"
    mem_len: int | None = None
    length: int | None = None

    @property
    def family(self) -> str:
        """What the names of its architectures begin with."""
        return "fwp_lm" if self.mem_len is None else "transformer_xl_lm"

    @property
    def flags(self) -> dict:
        """The flags of fairseq-train that choose this attention; none is left to its default."""
        if self.mem_len is not None:
            return {"--mem-len": self.mem_len, "--fwp-state": self.state}
        return {
            "--fwp-feature-map": self.feature_map,
            "--fwp-d-dot": self.d_dot,
            "--fwp-update-rule": self.update_rule,
            "--fwp-normalizer": self.normalizer,
            "--no-token-positional-embeddings": None if self.positions else True,
            "--fwp-state": self.state,
        }

    @property
    def attention_normalizer(self) -> bool:
        """Whether the values that are read are divided by the sum of the keys."""
        return self.normalizer in ("attention", "both")


def _row(model: str, rule: str, size: str, feature_map: str, d_dot: int = 0, variant: str = "", **more) -> Row:
    """Makes a row with the normaliser of its rule: Sec. 3.2 for the sum rule, Sec. 4.2 for the delta rule."""
    name = "-".join(part for part in (model, rule, variant, size) if part)
    normalizer = {"sum": "attention", "delta": "sum"}[rule]
    return Row(name, model, size, feature_map, d_dot or D_KEY[size], rule, **({"normalizer": normalizer} | more))


def _table_2(size: str) -> tuple[Row, ...]:
    return (
        Row(f"transformer-{size}", "transformer", size, "softmax"),
        *(_row("linear", rule, size, "elu") for rule in ("sum", "delta")),
        *(_row("performer", rule, size, "favor") for rule in ("sum", "delta")),
    )


_BOTH, _ALONE = {"normalizer": "both"}, {"positions": False}
_CARRIED = {"positions": False, "state": "carried"}
_TABLE_3 = (
    _row("linear", "delta", "medium", "elu", variant="normalised", **_BOTH),
    _row("linear", "delta", "medium", "elu", variant="normalised-nopos", **_BOTH, **_ALONE),
    _row("linear", "delta", "medium", "elu", variant="nopos", **_ALONE),
)
# Memory and segment of Transformer-XL; their sum is what it keeps, and 15 + 1 tokens are as much as the fast weights.
_MEMORIES = {15: 1, 64: 64, 128: 128, 384: 384}
_TABLE_4 = (
    *(_row("linear", rule, "medium", "elu", variant="carried", **_CARRIED) for rule in ("sum", "delta")),
    *(
        Row(
            f"transformer-xl-{mem_len}",
            f"Transformer-XL, memory of {mem_len}",
            "medium",
            "softmax",
            positions=False,
            state="carried",
            mem_len=mem_len,
            length=length,
        )
        for mem_len, length in _MEMORIES.items()
    ),
)
_TABLE_5 = (
    *(_row("performer", rule, "small", "favor", 32, "32") for rule in ("sum", "delta")),
    *(_row("dpfp", rule, "small", "dpfp", 32, "32") for rule in ("sum", "delta")),
)
# The rows are in the order in which they are trained. paper.json says which tables each row is in.
ROWS = (*_table_2("medium"), *_TABLE_4, *_TABLE_3, *_table_2("small"), *_TABLE_5)
# The measure in which the results of a preset are given: the field of a record's evaluation, and its name.
PERPLEXITY, BITS = ("word_perplexity", "perplexity by word"), ("bits_per_token", "bits per character")
MEASURES = {"wikitext103": PERPLEXITY, "tinyshakespeare": BITS, "smoke": BITS}
BY_NAME = {row.name: row for row in ROWS}
