"""What `fwp train` plans: validations of short trainings, and when it will be done."""

import argparse
from datetime import datetime
from types import SimpleNamespace

import pytest
import torch
from fairseq import options

from fwp_fairseq.checkpoint_content import plain
from fwp_fairseq.cli import commands
from fwp_fairseq.cli.beginning import Beginning, begun_in
from fwp_fairseq.cli.errors import CommandError
from fwp_fairseq.cli.plan import expected_time, planned_trainings
from fwp_fairseq.cli.plugin import import_plugin
from fwp_fairseq.cli.recipe import NO_SINUSOIDS, Recipe
from fwp_fairseq.cli.train import add_arguments
from fwp_fairseq.cli.training import Training, left_of, lengths_of
from fwp_fairseq.cli.trial import without

RECIPE = Recipe(100_000, [25] * 10_000, 200_000)  # an epoch is 100 batches of 2,500 tokens


@pytest.mark.parametrize("updates, every", [(120, 15), (499, 62), (7, 1)])
def test_trainings_of_few_epochs_are_validated_and_saved_within_them(updates, every):
    """With the usual --patience, which also fits intervals that the user gives instead."""
    flags = ["--save-interval-updates", str(every), "--keep-interval-updates", "1"]
    assert RECIPE.intervals(updates) == flags and updates // every >= min(updates, 8)


def test_longer_trainings_are_validated_after_epochs():
    assert RECIPE.intervals(500) == []


@pytest.mark.parametrize(
    "updates, left, said",
    [
        (600, [600], "about 5.0 min, 0.50 s an update, of each training; done at about 23:35, translations"),
        (600, [600, 600], "of each training; 10.0 min of both; done at about 23:40, translations not included"),
        (600, [0, 600], "of each training; 10.0 min of both; done at about 23:35, translations not included"),
        (6000, [6000], "done at about 00:20 on 02 March, translations not included"),
    ],
)
def test_the_time_of_all_trainings_and_its_end_are_said(updates, left, said):
    assert said in expected_time(0.5, updates, left, datetime(2026, 3, 1, 23, 30))


def arguments_of_a_baseline(tmp_path, minutes, flags=()):
    """Returns what `planned_trainings` gets for a training of so few updates that the time of one is not measured."""
    import_plugin()
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = ["--texts", "x", "--source", "en", "--target", "de", "--out", "y", "--baseline", *minutes]
    pairs = {part: [("a", "b")] for part in ("train", "valid", "test")}
    corpus = SimpleNamespace(words=1000, languages=("en", "de"), pairs=pairs, without_text={})
    prepared = SimpleNamespace(
        corpus=corpus, folder=tmp_path, pieces=9, sides=lambda _: ([5], [5]), lengths=lambda _: [5]
    )
    return parser.parse_args([*words, "--", "--max-update", "30", *flags]), prepared


CHOICES = {
    "--optimizer": ("--adam-betas", {"adam": True, "adafactor": False, "sgd": False}),
    "--criterion": ("--label-smoothing", {"label_smoothed_cross_entropy": True, "cross_entropy": False}),
    "--lr-scheduler": ("--warmup-updates", {"cosine": True, "tri_stage": False, "pass_through": False}),
}


@pytest.mark.parametrize(
    "choice, name, setting, has",
    [(choice, name, setting, has) for choice, (setting, names) in CHOICES.items() for name, has in names.items()],
)
def test_what_the_user_chooses_gets_no_settings_of_another_choice(tmp_path, choice, name, setting, has):
    args, prepared = arguments_of_a_baseline(tmp_path, [], [f"{choice}={name}"])
    words = planned_trainings(args, prepared, tmp_path, None, None)[0].words
    unknown = options.parse_args_and_arch(options.get_training_parser(), words[3:], parse_known=True)[1]
    assert unknown == [] and (setting in words) == has


def test_sources_that_are_truncated_may_be_of_any_length(tmp_path):
    args, prepared = arguments_of_a_baseline(tmp_path, [], ["--max-source-positions", "9"])
    prepared.sides, prepared.lengths = lambda _: ([50], [5]), lambda _: [50]
    with pytest.raises(CommandError, match="all 1 lines to train on"):
        planned_trainings(args, prepared, tmp_path, None, None)
    args.flags.append("--truncate-source")
    assert planned_trainings(args, prepared, tmp_path, None, None)


@pytest.mark.parametrize("without_sinusoids", [True, False])
def test_a_training_goes_on_with_the_sinusoids_that_it_has_or_not(save, tmp_path, without_sinusoids):
    """Those of earlier versions have them with --passage too; the attention does not tell."""
    args, prepared = arguments_of_a_baseline(tmp_path, [])
    args.passage = 9
    trainings = planned_trainings(args, prepared, tmp_path, None, begun_in(tmp_path))
    assert [NO_SINUSOIDS in training.words for training in trainings] == [True, False]
    (tmp_path / "checkpoints").mkdir()
    path = save("fwp_transformer_tiny", no_token_positional_embeddings=without_sinusoids)
    path.rename(tmp_path / "checkpoints/checkpoint_last.pt")
    for flags in ([], ["--fwp-decoder", "delta"]):
        args.flags = ["--max-update", "30", *flags]
        trainings = planned_trainings(args, prepared, tmp_path, None, begun_in(tmp_path))
        assert [NO_SINUSOIDS in training.words for training in trainings] == [without_sinusoids, False]


@pytest.mark.parametrize("learned, limits", [(True, (77, 1024)), (False, (1024, 1024))])
def test_fine_tuning_keeps_as_many_learned_positions_as_there_are(save, tmp_path, learned, limits):
    args, prepared = arguments_of_a_baseline(tmp_path, [])
    args.baseline = None
    path = save("fwp_transformer_tiny", encoder_learned_pos=learned)
    model = plain(torch.load(path, weights_only=True)["cfg"]["model"])
    task = {"max_source_positions": 77, "max_target_positions": 99}
    (training,) = planned_trainings(args, prepared, tmp_path, Beginning(path, task, model), None)
    found = lengths_of(training.words)
    assert (found.max_source_positions, found.max_target_positions) == limits


@pytest.mark.parametrize("minutes", [[], ["--minutes", "5"]])
def test_a_baseline_has_the_settings_of_the_model_if_no_update_is_timed(tmp_path, minutes):
    args, prepared = arguments_of_a_baseline(tmp_path, minutes)
    own = ("--arch", "--fwp-feature-map", "--save-dir", "--max-update")
    model, baseline = (
        without(training.words, own) for training in planned_trainings(args, prepared, tmp_path, None, None)
    )
    assert model == baseline


@pytest.mark.parametrize(
    "ended, left",
    [
        ({"early_stopping": {"num_runs": 10}}, 60),  # by --patience; the other makes all of its updates
        ({"previous_training_time": 600.0}, 7),  # by --minutes; the other makes no more updates
        ({}, 60 - 7 + 60),
    ],
)
def test_trainings_that_have_ended_take_no_more_time(save, tmp_path, monkeypatch, ended, left):
    flags = ["--patience", "10", "--stop-time-hours", "0.1"]
    first, second = (Training(tmp_path / name, flags) for name in ("first", "second"))
    first.checkpoints.mkdir(parents=True)
    path = first.checkpoints / "checkpoint_last.pt"
    state = torch.load(save("fwp_transformer_tiny"), weights_only=True)
    state["extra_state"] |= ended
    torch.save(state, path)
    assert sum(left_of([first, second], 60)) == left


@pytest.mark.parametrize(
    "flags, limit",
    [
        (["--patience", "3"], "patience"),
        (["--patience", "4"], None),
        (["--patience", "-1", "--stop-time-hours", "1"], None),
        (["--patience", "4", "--stop-time-hours", "0.9"], "time"),
    ],
)
def test_updates_and_their_end_come_from_the_last_checkpoint(save, tmp_path, flags, limit):
    training = Training(tmp_path, ["fairseq-train", *flags])
    assert training.updates() == (None, None)
    path = training.checkpoints / "checkpoint_last.pt"
    path.parent.mkdir()
    state = torch.load(save("fwp_transformer_tiny").rename(path), weights_only=True)
    state["extra_state"] |= {"early_stopping": {"best": 1.0, "num_runs": 3}, "previous_training_time": 3600.0}
    torch.save(state, path)
    assert training.updates() == (7, limit)
    torch.save({name: state[name] for name in ("cfg", "model")}, path)
    assert training.updates() == (None, None)


def test_a_training_whose_time_was_over_before_limits_a_baseline_again(save, tmp_path, monkeypatch, capsys):
    def follow(words, log, progress):
        limit = "cumulative_training_time: 0.04 > stop_time_hours: 0.03 hour(s)"
        progress.line(f"| INFO | x | Stopping training before its first update due to {limit}")
        return 0

    monkeypatch.setattr(commands, "follow", follow)
    training = Training(tmp_path, ["fairseq-train", "--max-update", "46"])
    assert training.run() is None  # without a checkpoint its updates are unknown
    training.checkpoints.mkdir()
    save("fwp_transformer_tiny").rename(training.checkpoints / "checkpoint_last.pt")
    assert training.run() == 7
    assert capsys.readouterr().out.endswith("\nthe time is over: 7 of 46 updates were made\n")
