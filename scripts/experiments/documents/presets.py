"""The sizes of corpus and model."""

from dataclasses import dataclass, replace

from scripts.common.row import Row
from scripts.common.runner.preset import Preset
from scripts.translation.preset import ADAM, ALL_SENTENCES, LABEL_SMOOTHING, SMALL_MODEL

from .corpus import Corpus
from .rows import BATCHES, NO_DROPOUT, ROWS, TRIED


@dataclass(frozen=True, kw_only=True)
class DocumentsPreset(Preset):
    """One size: what the texts are, and the flags of training and decoding."""

    corpus: Corpus
    training: dict
    decoding: dict
    rows: tuple[Row, ...] = ROWS + NO_DROPOUT + TRIED


# The longest passages that are translated have 1,300 pieces.
_POSITIONS = {"--max-source-positions": 2048, "--max-target-positions": 2048}
# Linear attention and softmax attention have the same settings.
_TRAINING = {
    **SMALL_MODEL,
    "--encoder-normalize-before": True,
    "--decoder-normalize-before": True,
    **_POSITIONS,
    **ADAM,
    "--lr": "3e-3",
    "--lr-scheduler": "polynomial_decay",  # a straight line to zero
    "--warmup-updates": 1000,
    **LABEL_SMOOTHING,
    "--max-tokens": 2500,
    **ALL_SENTENCES,
    # The loss is taken every 500 updates.
    "--save-interval-updates": 500,
    "--keep-interval-updates": 1,
    "--no-epoch-checkpoints": True,
    "--log-interval": 100,
}


def _updates(number: int) -> dict:
    return {"--max-update": number, "--total-num-update": number}


LONG = DocumentsPreset(
    name="long",
    corpus=Corpus(),
    training=_TRAINING | _updates(15000),
    decoding={
        **{"--beam": 4, "--max-tokens": 6000, "--max-len-a": 1.5, "--max-len-b": 20},
        **_POSITIONS,
        **ALL_SENTENCES,
    },
)
# Without dropout, because softmax attention is best so.
SHORT = replace(
    LONG,
    name="short",
    training=_TRAINING | {"--dropout": 0.0} | _updates(3000),
    rows=ROWS + BATCHES,
)
SMOKE = DocumentsPreset(
    name="smoke",
    corpus=Corpus(words=40, test_words=(40, 80), vocabulary=300, documents=40),
    training=_TRAINING | _updates(4) | {"--max-tokens": 500, "--save-interval-updates": 2, "--log-interval": 1},
    # An untrained model never ends a sentence.
    decoding=LONG.decoding | {"--beam": 2, "--max-len-a": 0, "--max-len-b": 8},
)
PRESETS = {preset.name: preset for preset in (LONG, SHORT, SMOKE)}
