"""The scales of the experiment, with every setting of their models, training and decoding."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from scripts.data.corpus import JOINED
from scripts.results import site_rows
from scripts.results.rows import BY_NAME, ROWS, ROWS_OF_128, Row

# With fairseq's default of 8, a last batch of fewer sentences is left out of validation and of translation.
_ALL_SENTENCES = {"--required-batch-size-multiple": 1}
_ADAM = {"--optimizer": "adam", "--adam-betas": "(0.9, 0.98)"}
_LABEL_SMOOTHING = {"--criterion": "label_smoothed_cross_entropy", "--label-smoothing": 0.1}


def _best_by_bleu(search: str, language: str) -> dict:
    """Flags for validation by BLEU, detokenised in this language; the best checkpoint and the last one are kept."""
    return {
        "--eval-bleu": True,
        "--eval-bleu-args": search,
        "--eval-bleu-detok": "moses",
        "--eval-bleu-detok-args": f'{{"target_lang": "{language}"}}',
        "--eval-bleu-remove-bpe": "sentencepiece",
        "--best-checkpoint-metric": "bleu",
        "--maximize-best-checkpoint-metric": True,
        "--keep-last-epochs": 1,
        "--log-interval": 100,
    }


@dataclass(frozen=True)
class Preset:
    """The settings of one scale.

    - `source`, `target`: the languages.
    - `d_key`: the width of the model's heads, for which `rows` are chosen.
    - `tokens_per_update`: the tokens that an update sees, with any number of GPUs.
    - `test`: the test set among those of fairseq-preprocess.
    - `reference`: its raw text in the target language, a file in the folder of the data.
    - `tokens`: a file of the reference's tokens, for tokenised BLEU too; None if only the raw text is scored.
    - `lower_case`: whether the model translates into lower case, so that BLEU ignores case.
    - `on_a_cpu`: how long a run would take on a CPU, if this is so long that it must be asked for.
    - `average`: the number of last epochs whose checkpoints are averaged; if None, the best checkpoint is used.
    - `table`: what its records are of.
    - `joined`: up to so many sentences are one line of the corpus (scripts/data/corpus.py).
    """

    name: str
    corpus: str
    reference: str
    model: dict
    training: dict
    tokens_per_update: int
    decoding: dict
    test: str = "test"
    source: str = "en"
    target: str = "de"
    d_key: int = 64
    tokens: str | None = None
    lower_case: bool = False
    on_a_cpu: str | None = None
    average: int | None = None
    distributed: bool = False  # whether one run can use several GPUs
    compound_split: bool = False
    rows: tuple[Row | site_rows.SiteRow, ...] = ROWS
    table: str = "bleu_vs_d_dot"
    joined: int = 1
    choices: dict = field(default_factory=dict)  # the values of options of run.py, the default first


# The recipe for the big model of Ott et al. 2018 (fairseq examples/scaling_nmt/README.md), as in Appendix E of
# Schlag et al. 2021: 3 GPUs, at most 3584 tokens each, 16 batches accumulated, 45 epochs, and the best checkpoint by
# validation BLEU.
WMT14 = Preset(
    name="wmt14",
    corpus="wmt14",
    reference="raw/newstest2014.de",
    model={
        "--arch": "fwp_transformer_vaswani_wmt_en_de_big",
        "--share-all-embeddings": True,
        "--dropout": 0.3,
    },
    training={
        **_ADAM,
        "--clip-norm": 0.0,
        "--weight-decay": 0.0,
        "--lr-scheduler": "inverse_sqrt",
        "--warmup-init-lr": 1e-7,
        "--warmup-updates": 4000,
        **_LABEL_SMOOTHING,
        "--max-tokens": 3584,
        "--max-epoch": 45,
        **_ALL_SENTENCES,
        **_best_by_bleu('{"beam": 4, "lenpen": 0.6}', "de"),
    },
    tokens_per_update=3584 * 16 * 3,
    decoding={"--beam": 4, "--lenpen": 0.6, "--batch-size": 128, "--tokenizer": "moses", **_ALL_SENTENCES},
    distributed=True,
    compound_split=True,
    on_a_cpu="years",
    # The paper does not report these. On the learning rate fairseq's README has 5e-4 in its example, and 1e-3 where it
    # recommends --update-freq 16. `sites` are the attentions that were replaced.
    choices={"lr": ("1e-3", "5e-4"), "sites": ("all", "decoder"), "precision": ("fp16", "bf16", "fp32")},
)

# fairseq's recipe for one GPU (examples/translation/README.md). It has no end: Luo et al. 2021 trained for 50,000
# updates. It names neither a precision nor a length penalty, so both are fairseq's defaults.
IWSLT14 = Preset(
    name="iwslt14",
    corpus="iwslt14",
    reference="raw/test.en",
    tokens="tok/test.en",
    lower_case=True,
    source="de",
    target="en",
    d_key=128,
    model={
        "--arch": "fwp_transformer_iwslt_de_en",
        "--share-decoder-input-output-embed": True,
        "--dropout": 0.3,
    },
    training={
        **_ADAM,
        "--clip-norm": 0.0,
        "--weight-decay": 1e-4,
        "--lr": 5e-4,
        "--lr-scheduler": "inverse_sqrt",
        "--warmup-updates": 4000,
        **_LABEL_SMOOTHING,
        "--max-tokens": 4096,
        "--max-update": 50000,
        **_ALL_SENTENCES,
        **_best_by_bleu('{"beam": 5, "max_len_a": 1.2, "max_len_b": 10}', "en"),
    },
    tokens_per_update=4096,
    decoding={"--beam": 5, "--batch-size": 128, "--tokenizer": "moses", **_ALL_SENTENCES},
    on_a_cpu="weeks",
    rows=ROWS_OF_128,
    choices={"precision": ("fp32", "fp16", "bf16")},
)

MULTI30K = Preset(
    name="multi30k",
    corpus="multi30k",
    reference="raw/test_2016_flickr.de",
    model={
        "--arch": "fwp_transformer_tiny",
        "--encoder-embed-dim": 128,
        "--encoder-ffn-embed-dim": 256,
        "--encoder-attention-heads": 2,
        "--decoder-embed-dim": 128,
        "--decoder-ffn-embed-dim": 256,
        "--decoder-attention-heads": 2,
        "--dropout": 0.1,
    },
    training={
        **_ADAM,
        "--lr": 4e-3,
        "--lr-scheduler": "polynomial_decay",
        "--warmup-updates": 300,
        "--total-num-update": 1300,
        "--max-update": 1300,
        **_LABEL_SMOOTHING,
        "--max-tokens": 2500,
        **_ALL_SENTENCES,
        "--keep-last-epochs": 2,
        "--log-interval": 10,
    },
    tokens_per_update=2500,
    decoding={"--beam": 4, "--batch-size": 64, "--max-len-a": 1.5, "--max-len-b": 20, **_ALL_SENTENCES},
    average=2,
)

# As many tokens as with multi30k, in smaller updates, with which the same model gets further (docs/results.md).
# Validation BLEU, of a greedy search, is what configurations are chosen by.
SITES = replace(
    MULTI30K,
    name="sites",
    training={
        **MULTI30K.training,
        "--lr": site_rows.LR,
        "--warmup-updates": 750,
        "--total-num-update": 3250,
        "--max-update": 3250,
        "--max-tokens": 1000,
        "--validate-interval": 3,
        "--eval-bleu": True,
        "--eval-bleu-args": '{"beam": 1}',
        "--eval-bleu-remove-bpe": "sentencepiece",
    },
    tokens_per_update=1000,
    rows=site_rows.ROWS,
    table="bleu_by_site",
)

# The same on lines of up to 12 sentences, of which the longest source has 248 tokens.
LONG = replace(
    SITES,
    name="long",
    reference=f"{JOINED}/test_2016_flickr.de",
    rows=site_rows.LONG_ROWS,
    table="bleu_of_long_lines",
    joined=12,
)

# The same from German into English, for which nothing was chosen.
DE_EN = replace(
    SITES,
    name="de-en",
    reference="raw/test_2016_flickr.en",
    source="de",
    target="en",
    rows=site_rows.DE_EN_ROWS,
    table="bleu_of_de_en",
)

# All steps, in seconds. The training ends within an epoch, so it saves a checkpoint after some updates, for
# `fwp average` to find. An untrained model never ends a sentence, so translations are limited to a few tokens.
SMOKE = Preset(
    name="smoke",
    corpus="multi30k",
    reference="raw/smoke.de",
    model=MULTI30K.model,
    training={
        **MULTI30K.training,
        "--max-tokens": 500,
        "--warmup-updates": 2,
        "--max-update": 4,
        "--save-interval-updates": 2,
        "--keep-interval-updates": 2,
        "--disable-validation": True,
        "--log-interval": 1,
    },
    tokens_per_update=500,
    decoding={**MULTI30K.decoding, "--beam": 2, "--max-len-a": 0, "--max-len-b": 5},
    test="test1",
    average=1,
    rows=(BY_NAME["softmax"], BY_NAME["dpfp-256"]),
)

PRESETS = {preset.name: preset for preset in (WMT14, IWSLT14, MULTI30K, SITES, LONG, DE_EN, SMOKE)}
