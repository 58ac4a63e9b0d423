"""Runs fairseq's tools on a language model: training, resuming, evaluation, and continuing a prefix."""

import re

import pytest

from tests.fairseq_tools.test_carried_state import LANGUAGE_MODEL as MODEL
from tests.fairseq_tools.test_documented import shell
from tests.pages import block, commands

TRAINING = [
    *("--task", "language_modeling", "--cpu", "--seed", 1, "--num-workers", 0, "--tokens-per-sample", 64),
    *("--optimizer", "adam", "--lr", 1e-2, "--clip-norm", 1, "--batch-size", 8, "--max-update", 8),
    *("--log-format", "json", "--log-interval", 1, "--no-progress-bar"),
]


@pytest.fixture(scope="module")
def train(tools):
    tools.run(
        *("preprocess", "--only-source", "--destdir", "lm", "--srcdict", "bin/dict.de.txt", "--workers", 1),
        *("--trainpref", "bpe/train.de", "--validpref", "bpe/val.de", "--testpref", "bpe/val.de"),
    ).ok()

    def run(folder, *arguments):
        # A kind has its own rule.
        model = MODEL[: MODEL.index("--fwp-update-rule")] if "--fwp-decoder" in arguments else MODEL
        return tools.run("train", "lm", *tools.user_dir, *model, *TRAINING, "--save-dir", folder, *arguments)

    return run


@pytest.mark.parametrize("option", ["--bf16", "--memory-efficient-fp16"])
def test_trains(train, option):
    losses = train("unused", "--no-save", "--disable-validation", option).ok().losses()
    assert len(losses) == 8 and losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize("flags", commands(block("docs/recurrent.md", "--fwp-decoder delta-rnn")))
def test_documented_nets(tools, train, flags):
    run = train if "--arch fwp_lm" in flags else tools.train
    found = run("unused", "--no-save", "--disable-validation", "--max-update", 2, *flags.split()).ok()
    assert len(found.losses()) == 2


def test_documented_evaluation(tools, train):
    """Both commands as they are printed in docs/language_models.md, in processes that are not forked."""
    folder = tools.folder / "documented-lm"
    task = ("--task", "fwp_language_modeling", "--save-dir", folder / "checkpoints-lm", "--max-update", 2)
    train("unused", *task).ok()
    (folder / "data-lm").symlink_to(tools.folder / "lm")
    pieces = (tools.folder / "bpe/val.de").read_text(encoding="utf-8")
    (folder / "valid.txt").write_text(pieces.replace(" ", "").replace("▁", " "), encoding="utf-8")
    evaluate = block("docs/language_models.md", 'fairseq-eval-lm data-lm --user-dir "$(fwp path)" --task')
    done = shell(tools, evaluate + block("docs/language_models.md", "fwp ppl eval.log"), folder, fresh=True)
    assert re.search(r"word perplexity [\d.]+$", done.stdout.strip()) and "DEBUG" not in done.stdout
