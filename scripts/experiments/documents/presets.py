"""The sizes of corpus and model."""

from dataclasses import dataclass, replace

from scripts.common.row import Row
from scripts.common.runner.preset import Preset
from scripts.translation.preset import ADAM, ALL_SENTENCES, LABEL_SMOOTHING, SMALL_MODEL

from .corpus import Corpus
from .rows import BATCHES, CANDIDATES, NO_DROPOUT, OTHER_SETTINGS, ROWS


@dataclass(frozen=True, kw_only=True)
class DocumentsPreset(Preset):
    """One size: what the texts are, and the flags of training and decoding, and whether a GPU computes in float16."""

    corpus: Corpus
    training: dict
    decoding: dict
    fp16: bool = False
    rows: tuple[Row, ...] = ROWS + NO_DROPOUT + OTHER_SETTINGS


# The longest passages that are translated have 1,300 pieces.
_POSITIONS = {"--max-source-positions": 2048, "--max-target-positions": 2048}
# Linear attention and softmax attention have the same settings.
_TRAINING = {
    "--encoder-normalize-before": True,
    "--decoder-normalize-before": True,
    **_POSITIONS,
    **ADAM,
    "--lr-scheduler": "polynomial_decay",  # a straight line to zero
    **LABEL_SMOOTHING,
    **ALL_SENTENCES,
    # The loss is taken every 500 updates.
    "--save-interval-updates": 500,
    "--keep-interval-updates": 1,
    "--no-epoch-checkpoints": True,
    "--log-interval": 100,
}
_SMALL = _TRAINING | SMALL_MODEL | {"--lr": "3e-3", "--warmup-updates": 1000, "--max-tokens": 2500}


def _updates(number: int) -> dict:
    return {"--max-update": number, "--total-num-update": number}


LONG = DocumentsPreset(
    name="long",
    corpus=Corpus(),
    training=_SMALL | _updates(15000),
    decoding={
        **{"--beam": 4, "--max-tokens": 6000, "--max-len-a": 1.5, "--max-len-b": 20},
        **_POSITIONS,
        **ALL_SENTENCES,
    },
)
# Without dropout, which only makes short trainings worse; `long` has 0.1 unless its row says otherwise.
SHORT = replace(
    LONG,
    name="short",
    training=_SMALL | {"--dropout": 0.0} | _updates(3000),
    rows=ROWS + BATCHES + CANDIDATES,
)
SMOKE = DocumentsPreset(
    name="smoke",
    corpus=Corpus(words=40, test_words=(40, 80), vocabulary=300, documents=40),
    training=_SMALL | _updates(4) | {"--max-tokens": 500, "--save-interval-updates": 2, "--log-interval": 1},
    # An untrained model never ends a sentence.
    decoding=LONG.decoding | {"--beam": 2, "--max-len-a": 0, "--max-len-b": 8},
    rows=LONG.rows + CANDIDATES,
)
# Twice as much text to learn from; valid and test are those of the others.
MORE = replace(LONG, name="more", corpus=Corpus(more=("manuals",)))
# A base Transformer, which sees 270 million tokens.
BASE = replace(
    MORE,
    name="base",
    corpus=replace(MORE.corpus, vocabulary=16000),
    training=_TRAINING
    | _updates(10800)
    | {"--arch": "fwp_transformer_wmt_en_de", "--share-all-embeddings": True, "--dropout": 0.3}
    | {"--lr": "7e-4", "--warmup-updates": 2000, "--max-tokens": 12500, "--update-freq": 2},
    fp16=True,
    on_a_cpu="weeks",
)
PRESETS = {preset.name: preset for preset in (LONG, SHORT, MORE, BASE, SMOKE)}
