"""Defines the rows of the language models' tables, from which the recipe and the tables are made."""

from dataclasses import dataclass

from scripts.common import row
from scripts.common.row import attention_fields

# The width of a head in the two sizes. It is the paper's in every preset, so that the paper's d_dot apply unchanged.
D_KEY = {"small": 16, "medium": 32}


@dataclass(frozen=True)
class LanguageModel(row.Row):
    """One language model.

    Args:
        size: ``small`` or ``medium``.
        positions: whether absolute positions are added.
        state: what a segment begins with, in training and evaluation: with ``reset`` an empty state, with ``carried``
            the fast weights that the segment before it left, or the memory.
        mem_len: tokens that Transformer-XL remembers; None for the other models.
        length: tokens of a segment; None for those of the preset, which is also the most.
    """

    size: str = "medium"
    positions: bool = True
    state: str = "reset"
    mem_len: int | None = None
    length: int | None = None

    @property
    def family(self) -> str:
        """The beginning of the names of its architectures."""
        return "fwp_lm" if self.mem_len is None else "transformer_xl_lm"

    @property
    def flags(self) -> dict:
        return {"--fwp-state": self.state, "--mem-len": self.mem_len} | super().flags


def _row(kind: str, size: str, positions: bool = True, state: str = "reset") -> LanguageModel:
    name = [kind, size, *["no-positions"] * (not positions), *["carried"] * (state == "carried")]
    more = {} if positions else {"--no-token-positional-embeddings": True}
    fields = attention_fields(kind, D_KEY[size])
    return LanguageModel("_".join(name), {"decoder": kind}, more, fields, size, positions, state)


def _transformer_xl(mem_len: int, length: int) -> LanguageModel:
    fields = attention_fields("softmax", D_KEY["medium"])
    return LanguageModel(f"transformer-xl-{mem_len}", {}, {}, fields, "medium", False, "carried", mem_len, length)


_DELTA = ",update-rule=delta"
_BOTH = f"elu{_DELTA},normalizer=both"


def _table_2(size: str) -> tuple[LanguageModel, ...]:
    favor = f"favor,d-dot={D_KEY[size]}"
    return tuple(_row(kind, size) for kind in ("softmax", "elu", "elu" + _DELTA, favor, favor + _DELTA))


_TABLE_3 = (_row(_BOTH, "medium"), _row(_BOTH, "medium", False), _row("elu" + _DELTA, "medium", False))
# Memory and segment of Transformer-XL; their sum is what it keeps, and 15 + 1 tokens are as much as the fast weights.
_MEMORIES = {15: 1, 64: 64, 128: 128, 384: 384}
_TABLE_4 = (
    *(_row(kind, "medium", False, "carried") for kind in ("elu", "elu" + _DELTA)),
    *(_transformer_xl(mem_len, length) for mem_len, length in _MEMORIES.items()),
)
_TABLE_5 = tuple(_row(f"{name},d-dot=32{rule}", "small") for name in ("favor", "dpfp") for rule in ("", _DELTA))
# The rows are in the order in which they are trained. paper.json says which tables each row is in.
ROWS = (*_table_2("medium"), *_TABLE_4, *_TABLE_3, *_table_2("small"), *_TABLE_5)
# The measure in which the results of a preset are given: the field of a record's evaluation, and its name.
PERPLEXITY, BITS = ("word_perplexity", "perplexity by word"), ("bits_per_token", "bits per character")
MEASURES = {"wikitext103": PERPLEXITY, "tinyshakespeare": BITS, "smoke": BITS}
BY_NAME = {row.name: row for row in ROWS}
