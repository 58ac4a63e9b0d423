"""The conversions of the softmax model of the experiment on documents: its decoder's self-attention to Hedgehog."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.experiments.conversion.rows import SHORT, Row
from scripts.experiments.documents import presets
from scripts.translation.preset import ADAM, ALL_SENTENCES, LABEL_SMOOTHING

_UPDATES = 500  # of a training in all
_TRANSFER = 150
_SOFTMAX = {"feature-map": "softmax"}
_HEDGEHOG = {"feature-map": "hedgehog", "d-dot": 128}


def _row(name: str, transfer: int, updates: int, **more) -> Row:
    return Row(name, {"": _SOFTMAX, "decoder": _HEDGEHOG | more}, transfer, updates)


@dataclass(frozen=True)
class Preset:
    """The model that is converted, and what its translations of the test documents are scored on.

    - `documents`: the preset of the experiment on documents, which has the corpus and the flags of decoding.
    - `words`, `one_of`: one of so many test windows of this length is translated.

    The others are those of the experiment on conversion.
    """

    name: str
    documents: presets.Preset
    softmax: str
    made_by: str
    words: int
    one_of: int
    rows: tuple[Row, ...]
    training: dict
    table: str = "documents_conversion"
    smoke: bool = False
    distributed = False
    on_a_cpu = None

    @property
    def decoding(self) -> dict:
        return self.documents.decoding


_ROWS = (
    _row("hedgehog", _TRANSFER, _UPDATES - _TRANSFER),
    _row("at-once", 0, _UPDATES),
    *(_row(f"window-{size}", 0, _UPDATES, window=size) for size in (16, 8, 32)),
)
DOCUMENTS = Preset(
    "documents",
    presets.DOCUMENTS,
    "runs/documents/documents/softmax-seed{seed}/checkpoints/checkpoint_best.pt",
    "python -m scripts.experiments documents --preset documents --rows softmax --seeds {seed}",
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
SMOKE = Preset(
    "smoke",
    presets.SMOKE,
    "runs/documents/smoke/softmax-seed{seed}/checkpoints/checkpoint_best.pt",
    "python -m scripts.experiments documents --preset smoke --rows softmax --seeds {seed}",
    words=40,
    one_of=1,
    rows=tuple(Row(row.name, row.attention, min(row.transfer, 4), 8) for row in _ROWS),
    training=DOCUMENTS.training | {"--max-tokens": 500, "--warmup-updates": 1, "--log-interval": 1},
    smoke=True,
)
PRESETS = {preset.name: preset for preset in (DOCUMENTS, SMOKE)}
