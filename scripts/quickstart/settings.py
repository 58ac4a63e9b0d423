"""All numbers of the quickstart. A run folder stores the command that was made from them."""

from __future__ import annotations

AVERAGE_LAST = 2

MODEL = {
    "--arch": "fwp_transformer_tiny",
    "--dropout": 0.1,
}

ATTENTION = {
    "parity": {"--arch": "fwp_transformer_tiny_parity"},
    "dpfp": {"--fwp-feature-map": "dpfp", "--fwp-d-dot": 192},
    "baseline": {"--fwp-feature-map": "softmax"},
}

# What records say of an architecture whose attention no flag says.
DESCRIBED = {"fwp_transformer_tiny_parity": {"feature_map": "elu, slots", "update_rule": "delta"}}

# With fairseq's default of 8, a last batch of fewer sentences is left out of validation and of the translations.
WHOLE = {"--required-batch-size-multiple": 1}

TRAINING = {
    "--optimizer": "adam",
    "--adam-betas": "(0.9, 0.98)",
    "--lr": 3e-3,
    # A linear decay to zero gives better results than an inverse square root when a training is this short.
    "--lr-scheduler": "polynomial_decay",
    "--warmup-updates": 400,
    "--total-num-update": 2000,
    "--max-update": 2000,
    "--criterion": "label_smoothed_cross_entropy",
    "--label-smoothing": 0.1,
    "--max-tokens": 2500,
    **WHOLE,
    "--log-interval": 10,
}

DECODING = {
    "--beam": 4,
    "--batch-size": 64,
    "--max-len-a": 1.5,
    "--max-len-b": 20,
    **WHOLE,
}

# The settings that differ with --smoke. An untrained model never ends a sentence, hence the short maximal length.
SMOKE_AVERAGE_LAST = 1
# The smoke training ends within its first epoch, so it saves by updates, for `fwp average` to find a checkpoint.
SMOKE_TRAINING = {
    "--warmup-updates": 10,
    "--max-tokens": 1000,
    "--max-update": 20,
    "--save-interval-updates": 20,
    "--log-interval": 1,
}
SMOKE_DECODING = {"--max-len-a": 0, "--max-len-b": 15}
