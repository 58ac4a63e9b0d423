"""A training that is interrupted and resumed ends as an uninterrupted one, whichever of these options it has.

Each is stopped in the middle and at the end of its second epoch. docs/reliability.md lists what differs.
"""

import pytest

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
    *("--save-interval-updates", 7, "--seed", 1, "--num-workers", 0, "--no-progress-bar"),
]
STOPS = ("checkpoint_2_7", "checkpoint2")
ADAM = ["--optimizer", "adam", "--adam-betas", "(0.9, 0.98)"]
FIXED = ["--lr", 3e-3, "--lr-scheduler", "fixed"]
# What fairseq itself does not save, and options that decide which batches an update gets; those that do not touch each
# other share a training.
CASES = {
    "reduce_lr_on_plateau": [
        *(*ADAM, "--lr", 3e-3, "--lr-scheduler", "reduce_lr_on_plateau"),
        *("--lr-threshold", 0.9, "--lr-patience", 1, "--lr-shrink", 0.5),
        *("--warmup-updates", 4, "--warmup-init-lr", 1e-4),
    ],
    "fp16-polynomial_decay-workers": [
        *(*ADAM, "--lr", 3e-3, "--lr-scheduler", "polynomial_decay"),
        *("--warmup-updates", 7, "--force-anneal", 2, "--total-num-update", 25),
        *("--fp16", "--fp16-no-flatten-grads", "--fp16-scale-window", 4),
        *("--num-workers", 1, "--clip-norm", 1, "--weight-decay", 0.1),
    ],
    "bf16-curriculum-ema-later": [
        *(*ADAM, *FIXED, "--bf16", "--curriculum", 1),
        *("--store-ema", "--ema-decay", 0.5, "--ema-start-update", 5),
    ],
    "memory-efficient-fp16-accumulation": [
        *(*ADAM, *FIXED, "--memory-efficient-fp16", "--fp16-scale-window", 4),
        *("--update-freq", "1,2,3", "--save-interval-updates", 1),
    ],
    "ema-new-batches": [
        *(*ADAM, *FIXED, "--store-ema", "--ema-fp32", "--ema-decay", 0.5, "--ema-update-freq", 2),
        *("--update-epoch-batch-itr", "True", "--skip-remainder-batch"),
    ],
    "patience": [*ADAM, "--lr", 1e-12, "--patience", 3],  # reached in the third epoch, of which a stop sees one or two
    "no-save-optimizer-state": [*ADAM, *FIXED, "--no-save-optimizer-state"],
}
WARNED = {"no-save-optimizer-state": "begins again at update 0"}
DIFFERS = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
VALIDATED = ("reduce_lr_on_plateau", "patience")


@pytest.mark.parametrize("name", CASES)
def test_ends_as_if_uninterrupted(tools, name):
    flags = [*MODEL, *TRAINING, *CASES[name], *([] if name in VALIDATED else ["--disable-validation"])]

    def train(save_dir, *more):
        found = tools.run("train", "bin", *tools.user_dir, *flags, "--save-dir", save_dir, *more).ok()
        return tools.load(f"{save_dir}/checkpoint_last.pt"), found

    expected, whole = train(f"{name}.whole")
    for stop in STOPS:
        found, resumed = train(f"{name}.{stop}", "--restore-file", f"{name}.whole/{stop}.pt")
        assert "no such checkpoint" not in resumed.out
        if name in WARNED:
            assert WARNED[name] in whole.out and WARNED[name] in resumed.out
            assert name in DIFFERS and expected["optimizer_history"] != found["optimizer_history"]
        else:
            assert_same_state(found, expected)
