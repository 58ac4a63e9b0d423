"""A training that is interrupted and resumed ends as an uninterrupted one, whatever fairseq's options are.

Each is stopped in the middle and at the end of its first and its second epoch. docs/reliability.md lists what differs.
"""

from argparse import ArgumentParser

import pytest
from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY

import fwp_fairseq.compat  # noqa: F401  (some optimizers' options are a Namespace)
from tests.fairseq_tools.test_training import assert_same_state
from tests.pages import ROOT

MODEL = [
    *("--arch", "fwp_transformer_tiny", "--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 16),
    *("--encoder-layers", 1, "--decoder-layers", 1, "--encoder-attention-heads", 1, "--decoder-attention-heads", 1),
    *("--fwp-decoder", "delta", "--task", "translation", "-s", "en", "-t", "de", "--dropout", 0.2),
]
# An epoch is 5 batches.
TRAINING = [
    *("--train-subset", "valid", "--valid-subset", "test", "--batch-size", 8, "--max-epoch", 3, "--cpu"),
    *("--save-interval-updates", 3, "--seed", 1, "--num-workers", 0, "--no-progress-bar"),
]
STOPS = ("checkpoint_1_3", "checkpoint1", "checkpoint_2_9", "checkpoint2")
ADAM = ["--optimizer", "adam", "--adam-betas", "(0.9, 0.98)"]
FIXED = ["--lr", 3e-3, "--lr-scheduler", "fixed"]
TOTAL = ["--max-update", 21]

# Each scheduler, in one case or two, with every flag that changes the rate, beside the optimizers' fixed rate.
SCHEDULES = {
    "cosine": [
        *("--lr", 3e-3, "--lr-period-updates", 4, "--t-mult", 2, "--lr-shrink", 0.5, "--min-lr", 1e-4),
        *("--warmup-updates", 4, "--warmup-init-lr", 1e-4, *TOTAL),
    ],
    "fixed": ["--lr", "3e-3,2e-3", "--force-anneal", 2, "--lr-shrink", 0.5, "--warmup-updates", 8],
    "inverse_sqrt": ["--lr", 3e-3, "--warmup-updates", 5, "--warmup-init-lr", 1e-4],
    "manual": ["--lr", 3e-3, "--epoch2lr", "{'1': 0.003, '2-3': 0.001}"],
    "manual-updates": ["--lr", 3e-3, "--update2lr", "{'2': 0.003, '7': 0.001, '11': 0.002}"],
    "polynomial_decay": [
        *("--lr", "3e-3,2e-3", "--warmup-updates", 4, "--power", 2, "--end-learning-rate", 1e-4),
        *("--total-num-update", 25),
    ],
    "polynomial_decay-annealed": [
        *("--lr", 3e-3, "--warmup-updates", 7, "--force-anneal", 2, "--total-num-update", 25),
    ],
    "reduce_lr_on_plateau": [
        *("--lr", 3e-3, "--lr-threshold", 0.9, "--lr-patience", 1, "--lr-shrink", 0.5),
        *("--warmup-updates", 4, "--warmup-init-lr", 1e-4),
    ],
    "reduce_lr_on_plateau-up": [
        *("--lr", 3e-3, "--maximize-best-checkpoint-metric", "--best-checkpoint-metric", "ppl", "--lr-threshold", 0.9),
    ],
    "step": [
        *("--lr", 3e-3, "--lr-deacy-period", 4, "--lr-decay", 0.6, "--min-lr", 1e-4),
        *("--warmup-updates", 4, "--warmup-init-lr", 1e-4),
    ],
    "tri_stage": ["--lr", 3e-3, "--phase-ratio", "[0.2, 0.3, 0.5]", *TOTAL],
    "tri_stage-steps": [
        *("--lr", 3e-3, "--warmup-steps", 4, "--hold-steps", 3, "--decay-steps", 6),
        *("--init-lr-scale", 0.1, "--final-lr-scale", 0.2),
    ],
    "triangular": [
        *("--lr", 3e-4, "--max-lr", 3e-3, "--lr-period-updates", 6, "--lr-shrink", 0.5, "--shrink-min"),
    ],
}
CASES = {
    "adadelta": ["--optimizer", "adadelta", *FIXED],
    "adafactor": ["--optimizer", "adafactor", *FIXED],
    "adagrad": ["--optimizer", "adagrad", *FIXED],
    "adamax": ["--optimizer", "adamax", *FIXED],
    "nag": ["--optimizer", "nag", "--momentum", 0.9, *FIXED],
    "sgd": ["--optimizer", "sgd", "--momentum", 0.9, *FIXED],
    **{name: [*ADAM, "--lr-scheduler", name.partition("-")[0], *flags] for name, flags in SCHEDULES.items()},
    "fp16": [*ADAM, *FIXED, "--fp16", "--fp16-no-flatten-grads", "--fp16-scale-window", 4],
    "bf16": [*ADAM, *FIXED, "--bf16"],
    "memory-efficient-fp16": [*ADAM, *FIXED, "--memory-efficient-fp16", "--fp16-scale-window", 4],
    "memory-efficient-bf16": [*ADAM, *FIXED, "--memory-efficient-bf16"],
    "amp": [*ADAM, *FIXED, "--amp"],
    "patience": [*ADAM, "--lr", 1e-12, "--patience", 5],
    "curriculum": [*ADAM, *FIXED, "--curriculum", 1],
    "ema": [*ADAM, *FIXED, "--store-ema", "--ema-fp32", "--ema-decay", 0.5, "--ema-update-freq", 2],
    "ema-later": [*ADAM, *FIXED, "--store-ema", "--ema-decay", 0.5, "--ema-start-update", 5],
    "accumulation": [*ADAM, *FIXED, "--update-freq", "1,2,3", "--save-interval-updates", 2],
    "new-batches": [*ADAM, *FIXED, "--update-epoch-batch-itr", "True", "--skip-remainder-batch"],
    "workers": [*ADAM, *FIXED, "--num-workers", 1, "--clip-norm", 1, "--weight-decay", 0.1],
    "no-save-optimizer-state": [*ADAM, *FIXED, "--no-save-optimizer-state"],
}
WARNED = {"no-save-optimizer-state": "begins again at update 0"}
DIFFERS = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
VALIDATED = ("reduce_lr_on_plateau", "reduce_lr_on_plateau-up", "patience")


@pytest.mark.parametrize("name", CASES)
def test_ends_as_if_uninterrupted(tools, name):
    flags = [*MODEL, *TRAINING, *CASES[name], *([] if name in VALIDATED else ["--disable-validation"])]

    def train(save_dir, *more):
        found = tools.run("train", "bin", *tools.user_dir, *flags, "--save-dir", save_dir, *more).ok()
        return tools.load(f"{save_dir}/checkpoint_last.pt"), found

    expected, whole = train(f"{name}.whole")
    for stop in STOPS:
        found, resumed = train(f"{name}.{stop}", "--restore-file", f"{name}.whole/{stop}.pt")
        if name in WARNED:
            assert WARNED[name] in whole.out and WARNED[name] in resumed.out
            assert name in DIFFERS and expected["optimizer_history"] != found["optimizer_history"]
        else:
            assert_same_state(found, expected)


def test_the_grid_has_every_flag_of_every_scheduler():
    """pass_through hands all to an optimizer with a scheduler of its own, which no flag of fairseq-train chooses."""
    for name, scheduler in LR_SCHEDULER_REGISTRY.items():
        parser = ArgumentParser(allow_abbrev=False)
        scheduler.add_args(parser)
        known = {action.option_strings[0] for action in parser._actions} - {"-h", "--help"}
        known -= {"--lr", "--max-update"}
        given = {word for case, flags in SCHEDULES.items() if case.partition("-")[0] == name for word in flags}
        assert name == "pass_through" or (known <= given and given), f"{name} lacks {known - given}"
