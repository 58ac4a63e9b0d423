"""Tests the commands that the quick start runs and prints."""

import shlex
from pathlib import Path

from scripts.common.commands import as_run, flags_of, printed
from scripts.data import corpus
from scripts.quickstart import arguments, commands, settings

DATA, RUN = Path("runs/quickstart/data"), Path("runs/quickstart/x")


def train(attention="dpfp", smoke=False, more=()):
    return commands.train(DATA, RUN, attention, smoke, 1, ["--cpu"], list(more))


def test_printed_command_is_the_command():
    for command in (train(), corpus.preprocess(DATA), commands.average(RUN, False)):
        assert shlex.split(printed(command).replace("\\\n", " ")) == as_run(command)


def test_baseline_differs_in_attention_only():
    ours, stock = flags_of(train()), flags_of(train("baseline"))
    different = {flag for flag in ours | stock if ours.get(flag) != stock.get(flag)}
    assert different == {"--fwp-feature-map", "--fwp-d-dot"}
    assert stock["--fwp-feature-map"] == "softmax" and "--fwp-d-dot" not in stock


def test_smoke_is_the_same_training_but_short():
    whole, short = flags_of(train()), flags_of(train(smoke=True))
    different = {flag for flag in whole | short if whole.get(flag) != short.get(flag)}
    assert different == {*settings.SMOKE_TRAINING, "--keep-last-epochs"}


def test_flags_of_the_user_replace_ours():
    command = train(more=["--lr", "0.5", "--fwp-update-rule", "delta"])
    assert command.count("--lr") == 1
    assert flags_of(command)["--lr"] == "0.5"
    assert command[-4:] == ["--lr", "0.5", "--fwp-update-rule", "delta"]


def test_attention_flags_replace_the_architecture_of_fast_weights():
    lines = ([], ["--from-scratch"], ["--name", "x", "--", "--lr", "1"], ["--name", "x", "--", "--fwp-d-dot", "96"])
    assert [arguments.parse(line).attention for line in lines] == ["converted", "parity", "parity", "dpfp"]
    assert flags_of(train("parity"))["--arch"] == "fwp_transformer_tiny_parity"
    assert flags_of(train())["--arch"] == "fwp_transformer_tiny"


def test_width_of_our_feature_map_is_not_put_upon_another():
    assert "--fwp-d-dot" not in flags_of(train(more=["--fwp-feature-map", "elu"]))


def test_nothing_is_left_untranslated():
    # By default fairseq leaves out a last batch of fewer than 8 sentences.
    for command in (train(), train(smoke=True), commands.generate(DATA, RUN, False, [])):
        assert flags_of(command)["--required-batch-size-multiple"] == "1"


def test_checkpoints_to_average_are_kept():
    kept = int(flags_of(train())["--keep-last-epochs"])
    assert kept >= int(flags_of(commands.average(RUN, False))["--last"])


def test_variants_have_folders_of_their_own():
    scratch = "--from-scratch"
    lines = (["--baseline"], ["--smoke"], ["--smoke", "--baseline"], [scratch, "--seed", "2"], [scratch], [])
    names = [arguments.parse(line).name for line in (*lines, ["--name", "x", "--", "--a"])]
    assert names == ["baseline", "smoke-finetune", "smoke-baseline", "parity-seed2", "parity", "finetune", "x"]
    assert arguments.parse(["--name", "x", "--", "--lr", "1", "--smoke"]).train_flags == ["--lr", "1", "--smoke"]
