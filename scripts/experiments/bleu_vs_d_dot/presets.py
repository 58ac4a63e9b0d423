"""The scales of the experiment, with every setting of their models, training and decoding."""

from dataclasses import replace

from scripts.translation.preset import ADAM, ALL_SENTENCES, LABEL_SMOOTHING, TranslationPreset, multi30k

from .rows import ROWS, WITH_HYBRIDS

# The recipe for the big model of Ott et al. 2018 (fairseq examples/scaling_nmt/README.md), as in Appendix E of
# Schlag et al. 2021: 3 GPUs, at most 3584 tokens each, 16 batches accumulated, 45 epochs, and the best checkpoint by
# validation BLEU.
WMT14 = TranslationPreset(
    name="wmt14",
    reference="raw/test.de",
    model={
        "--arch": "fwp_transformer_vaswani_wmt_en_de_big",
        "--share-all-embeddings": True,
        "--dropout": 0.3,
    },
    training={
        **ADAM,
        "--clip-norm": 0.0,
        "--weight-decay": 0.0,
        # The paper does not report it. fairseq's README has 5e-4 in its example, and 1e-3 where it recommends
        # --update-freq 16.
        "--lr": 1e-3,
        "--lr-scheduler": "inverse_sqrt",
        "--warmup-init-lr": 1e-7,
        "--warmup-updates": 4000,
        **LABEL_SMOOTHING,
        "--max-tokens": 3584,
        "--max-epoch": 45,
        **ALL_SENTENCES,
        "--eval-bleu": True,
        "--eval-bleu-args": '{"beam": 4, "lenpen": 0.6}',
        "--eval-bleu-remove-bpe": "sentencepiece",
        "--best-checkpoint-metric": "bleu",
        "--maximize-best-checkpoint-metric": True,
        "--keep-last-epochs": 1,
        "--log-interval": 100,
    },
    tokens_per_update=3584 * 16 * 3,
    decoding={"--beam": 4, "--lenpen": 0.6, "--batch-size": 128, **ALL_SENTENCES},
    distributed=True,
    compound_split=True,
    on_a_cpu="years",
    rows=WITH_HYBRIDS,
    fp16=True,
)

MULTI30K = multi30k(ROWS)

# All steps, in seconds. The training ends within an epoch, so it saves a checkpoint after some updates, for
# `fwp average` to find. An untrained model never ends a sentence, so translations are limited to a few tokens.
SMOKE = replace(
    MULTI30K,
    name="smoke",
    reference="raw/smoke.de",
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
    rows=WITH_HYBRIDS,
)

# More than an epoch of the real training, in about two minutes; 100 sentences of its test set are translated.
REHEARSAL = replace(
    SMOKE,
    name="rehearsal",
    training={**MULTI30K.training, "--warmup-updates": 60, "--total-num-update": 250, "--max-update": 250},
    tokens_per_update=MULTI30K.tokens_per_update,
    decoding=MULTI30K.decoding,
)

PRESETS = {preset.name: preset for preset in (WMT14, MULTI30K, REHEARSAL, SMOKE)}
