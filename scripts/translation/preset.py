"""The settings of a translation experiment at one scale, and what several of them share."""

from dataclasses import dataclass, replace

from scripts.common.runner import preset

# With fairseq's default of 8, a last batch of fewer sentences is left out of validation and of translation.
ALL_SENTENCES = {"--required-batch-size-multiple": 1}
ADAM = {"--optimizer": "adam", "--adam-betas": "(0.9, 0.98)"}
LABEL_SMOOTHING = {"--criterion": "label_smoothed_cross_entropy", "--label-smoothing": 0.1}
# 2+2 layers of width 128.
SMALL_MODEL = {
    "--arch": "fwp_transformer_tiny",
    **{
        f"--{part}-{name}": value
        for part in ("encoder", "decoder")
        for name, value in (("embed-dim", 128), ("ffn-embed-dim", 256), ("attention-heads", 2))
    },
    "--dropout": 0.1,
}
SMALL_DECODING = {"--beam": 4, "--batch-size": 64, "--max-len-a": 1.5, "--max-len-b": 20, **ALL_SENTENCES}


@dataclass(frozen=True, kw_only=True)
class TranslationPreset(preset.Preset):
    """The settings of one scale.

    - `model`, `training`, `decoding`: flags of fairseq-train and of fairseq-generate that all rows have.
    - `source`, `target`: the languages.
    - `tokens_per_update`: the tokens that an update sees, with any number of GPUs.
    - `test`: the test set among those of fairseq-preprocess.
    - `reference`: its raw text in the target language, a file in the folder of the data.
    - `fp16`: whether a GPU computes in float16.
    - `average`: the number of last epochs whose checkpoints are averaged; if None, the best checkpoint is used.
    - `compound_split`: whether German compounds are also scored in parts, as the paper does.
    - `table`: what its records are of.
    """

    reference: str
    model: dict
    training: dict
    tokens_per_update: int
    decoding: dict
    test: str = "test"
    source: str = "en"
    target: str = "de"
    fp16: bool = False
    average: int | None = None
    compound_split: bool = False
    table: str = "bleu_vs_d_dot"


def _training(lr: float, warmup: int, updates: int) -> dict:
    """Returns a linear decay to zero, which beats an inverse square root when a training is as short as these."""
    return {
        **ADAM,
        "--lr": lr,
        "--lr-scheduler": "polynomial_decay",
        "--warmup-updates": warmup,
        "--total-num-update": updates,
        "--max-update": updates,
        **LABEL_SMOOTHING,
        "--max-tokens": 2500,
        **ALL_SENTENCES,
        "--log-interval": 10,
    }


def multi30k(rows: tuple) -> TranslationPreset:
    """Returns the small model of Multi30k: 2+2 layers of width 128, trained in minutes on one core."""
    return TranslationPreset(
        name="multi30k",
        reference="raw/test_2016_flickr.de",
        rows=rows,
        model=SMALL_MODEL,
        training=_training(4e-3, 300, 1300) | {"--keep-last-epochs": 2},
        tokens_per_update=2500,
        decoding=SMALL_DECODING,
        average=2,
    )


# The quick start's model, from which conversions begin.
TINY = replace(
    multi30k(()),
    name="quickstart",
    model={"--arch": "fwp_transformer_tiny", "--dropout": 0.1},
    training=_training(3e-3, 400, 2000),
    table="quickstart",
)
# An untrained model never ends a sentence, hence the short translations.
SMOKE_DECODING = {"--max-len-a": 0, "--max-len-b": 15}
