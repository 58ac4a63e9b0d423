"""The scales of the experiment: every number of models, training and evaluation."""

from dataclasses import dataclass, field

from scripts.common.runner.preset import Preset

from .rows import ROWS, LanguageModel


@dataclass(frozen=True)
class Size:
    """Settings that the rows of one size share.

    Args:
        layers, width: of the model; what its state is counted from.
        variant: what the names of its architectures end with.
        model: fairseq-train's flags.
        length: tokens of a segment, L.
        streams: segments that an update sees, of as many streams, on all GPUs together.
        updates: the length of the training.
    """

    layers: int
    width: int
    variant: str
    model: dict
    length: int
    streams: int
    updates: int


@dataclass(frozen=True, kw_only=True)
class LanguageModelPreset(Preset):
    """One scale.

    Args:
        corpus: what is prepared, one of `data.CORPORA`.
        sizes: by the name that rows have for them.
        training: fairseq-train's flags of all rows.
        carrying: more of them, of the rows with carried fast weights.
        transformer_xl: likewise of Transformer-XL; they replace those of all rows.
        window_batch: windows of the sliding-window evaluation that are computed together; the result is the same.
    """

    corpus: str
    sizes: dict[str, Size]
    training: dict
    window_batch: int
    carrying: dict = field(default_factory=dict)
    transformer_xl: dict = field(default_factory=dict)
    rows: tuple[LanguageModel, ...] = ROWS


def _adam(lr: float, warmup: int) -> dict:
    """Adam, a linear warm-up, and half a cosine to 0 at --max-update."""
    return {
        "--optimizer": "adam",
        "--lr": lr,
        "--lr-scheduler": "cosine",
        "--warmup-updates": warmup,
        "--clip-norm": 0.25,
        "--dropout": 0.1,
        "--no-epoch-checkpoints": True,
    }


# Sec. 6.3 and Appendix of Schlag et al. 2021, and where they say nothing the authors' training scripts.
WIKITEXT103 = LanguageModelPreset(
    name="wikitext103",
    corpus="wikitext103",
    sizes={
        "small": Size(16, 128, "_wikitext103_small", {}, length=256, streams=96, updates=500_000),
        "medium": Size(16, 256, "_wikitext103_medium", {}, length=384, streams=56, updates=400_000),
    },
    training={
        **_adam(2.5e-4, 2000),
        "--criterion": "adaptive_loss",
        "--ddp-backend": "legacy_ddp",
        "--save-interval-updates": 4000,
        "--keep-interval-updates": 1,
        "--log-interval": 200,
    },
    transformer_xl={"--max-update": 200_000, "--warmup-updates": 1000},
    window_batch=1,
    distributed=True,
    on_a_cpu="years",
)


def _little(heads: int, width: int, length: int, updates: int, layers: int = 2, streams: int = 16) -> Size:
    model = {
        "--decoder-layers": layers,
        "--decoder-embed-dim": width,
        "--decoder-input-dim": width,
        "--decoder-output-dim": width,
        "--decoder-ffn-embed-dim": 4 * width,
        "--decoder-attention-heads": heads,
        "--share-decoder-input-output-embed": True,
    }
    return Size(layers, width, "", model, length, streams, updates)


_LITTLE = {"--criterion": "cross_entropy", "--log-interval": 50}


TINY_SHAKESPEARE = LanguageModelPreset(
    name="tinyshakespeare",
    corpus="tinyshakespeare",
    sizes={"small": _little(4, 64, 64, 2000), "medium": _little(4, 128, 128, 2000)},
    training={**_adam(3e-3, 100), **_LITTLE},
    window_batch=64,
    # Over 512 batches in the end, about the text of an evaluation: models cope with none longer than in training.
    carrying={"--fwp-carry-doubling": 170},
)

# The same steps in seconds.
SMOKE = LanguageModelPreset(
    name="smoke",
    corpus="smoke",
    sizes={name: _little(1, width, 16, 8, layers=1, streams=4) for name, width in (("small", 16), ("medium", 32))},
    training={**_adam(1e-2, 2), **_LITTLE, "--log-interval": 1},
    window_batch=64,
)

PRESETS = {preset.name: preset for preset in (WIKITEXT103, TINY_SHAKESPEARE, SMOKE)}
