"""The conversions of softmax models of the experiment on documents: their decoders to Hedgehog."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scripts.experiments.conversion import rows
from scripts.experiments.conversion.rows import SHORT, Row
from scripts.experiments.documents import presets
from scripts.translation.preset import ADAM, ALL_SENTENCES, LABEL_SMOOTHING

_UPDATES = 500  # of a training in all
_TRANSFER = 150
_SOFTMAX = {"feature-map": "softmax"}
_HEDGEHOG = {"feature-map": "hedgehog", "d-dot": 128}


def _row(name: str, transfer: int, updates: int, control: bool = False, **more) -> Row:
    return Row(name, {"": _SOFTMAX, "decoder": _HEDGEHOG | more}, transfer, updates, control)


@dataclass(frozen=True, kw_only=True)
class Preset(rows.Preset):
    """The model that is converted, and what its translations of the test documents are scored on.

    - `documents`: the preset of the experiment on documents, which has the corpus and the flags of decoding.
    - `words`, `one_of`: one of so many test windows of this length is translated.
    """

    documents: presets.Preset
    words: int
    one_of: int
    updates: int = _UPDATES
    table: str = "documents_conversion"

    @property
    def decoding(self) -> dict:
        return self.documents.decoding


_ROWS = (
    _row("hedgehog", _TRANSFER, _UPDATES - _TRANSFER),
    _row("at-once", 0, _UPDATES),
    *(_row(f"window-{size}", 0, _UPDATES, control=size == 16, window=size) for size in (16, 8, 32)),
)
DOCUMENTS = Preset(
    name="documents",
    documents=presets.LONG,
    model="runs/documents/long/softmax-seed{seed}/checkpoints/checkpoint_best.pt",
    made_by="python -m scripts.experiments documents --preset long --rows softmax --seeds {seed}",
    words=150,
    one_of=5,
    rows=_ROWS,
    training={
        **ADAM,
        "--lr-scheduler": "polynomial_decay",
        **LABEL_SMOOTHING,
        "--max-tokens": 2500,
        **ALL_SENTENCES,
        "--no-epoch-checkpoints": True,
        **SHORT,
    },
)
SMOKE = replace(
    DOCUMENTS,
    name="smoke",
    documents=presets.SMOKE,
    model=DOCUMENTS.model.replace("documents/long", "documents/smoke"),
    made_by=DOCUMENTS.made_by.replace("--preset long", "--preset smoke"),
    words=40,
    one_of=1,
    rows=tuple(replace(row, transfer=min(row.transfer, 4), updates=8) for row in _ROWS),
    training=DOCUMENTS.training | {"--max-tokens": 500, "--warmup-updates": 1, "--log-interval": 1},
    smoke=True,
)
PRESETS = {preset.name: preset for preset in (DOCUMENTS, SMOKE)}
