"""The conversions of softmax models of the experiment on documents: their decoders to Hedgehog."""

from dataclasses import dataclass, replace

from scripts.experiments.conversion.rows import HEDGEHOG, SHORT, ConversionPreset, ConversionRow
from scripts.experiments.documents import presets
from scripts.translation.preset import TINY

_TRANSFER = 300  # updates, of all those of a row


def _rows(updates: int) -> tuple[ConversionRow, ...]:
    def row(name: str, transfer: int = 0, control: bool = False, more: str = "") -> ConversionRow:
        sites = {"encoder": "softmax", "decoder": HEDGEHOG + more, "cross": "softmax"}
        return ConversionRow(name, sites, transfer=transfer, updates=updates - transfer, control=control)

    windows = (row(f"window-{size}", control=size == 16, more=f",window={size}") for size in (16, 8, 32))
    return row("hedgehog", _TRANSFER), row("at-once"), *windows


@dataclass(frozen=True, kw_only=True)
class DocumentsConversionPreset(ConversionPreset):
    """The model that is converted, and what its translations of the test documents are scored on.

    - `documents`: the preset of the experiment on documents, which has the corpus and the flags of decoding.
    - `words`, `one_of`: one of so many test passages of this length is translated.
    """

    documents: presets.DocumentsPreset
    words: int
    one_of: int
    table: str = "documents_conversion"

    @property
    def decoding(self) -> dict:
        return self.documents.decoding


def _preset(name: str, updates: int) -> DocumentsConversionPreset:
    """Returns conversions of the best softmax attention, each trained for so many updates in all."""
    return DocumentsConversionPreset(
        name=name,
        documents=presets.LONG,
        model="runs/documents/long/softmax-no-dropout-seed{seed}/checkpoints/checkpoint_best.pt",
        made_by="python -m scripts.experiments documents --preset long --rows softmax-no-dropout --seeds {seed}",
        words=150,
        one_of=5,
        updates=updates,
        rows=_rows(updates),
        training=TINY.training | SHORT | {"--no-epoch-checkpoints": True},
    )


# A tenth and a fifth of the updates of that model.
TENTH, FIFTH = _preset("tenth", 1500), _preset("fifth", 3000)
SMOKE = replace(
    TENTH,
    name="smoke",
    documents=presets.SMOKE,
    model=TENTH.model.replace("documents/long", "documents/smoke"),
    made_by=TENTH.made_by.replace("--preset long", "--preset smoke"),
    words=40,
    one_of=1,
    rows=tuple(replace(row, transfer=min(row.transfer, 4), updates=8) for row in TENTH.rows),
    training=TENTH.training | {"--max-tokens": 500, "--warmup-updates": 1, "--log-interval": 1},
    smoke=True,
)
PRESETS = {preset.name: preset for preset in (TENTH, FIFTH, SMOKE)}
