"""Tests how the log of fairseq-train is read and how its progress is shown."""

import json
import math

import pytest

from scripts.common.progress import TrainingDisplay, TrainingProgress, loss_problem, parse, summary


def record(kind, **values):
    return f"2026-01-01 10:00:00 | INFO | {kind} | {json.dumps(values)}"


def inner(epoch, update, number, loss="5.5"):
    return record("train_inner", epoch=epoch, update=update, loss=loss, num_updates=str(number), lr="0.001")


LOG = [
    "2026-01-01 09:59:58 | INFO | fairseq_cli.train | num. shared model params: 2,245,632 (num. trained: 2,245,632)",
    "2026-01-01 09:59:58 | INFO | fairseq_cli.train | num. expert model params: 0 (num. trained: 0)",
    inner(1, 0.25, 10, "9.5"),
    inner(1, 0.5, 20, "8.5"),
    record("valid", epoch=1, valid_loss="7.25", valid_num_updates="40"),
    record("train", epoch=1, train_loss="8.0", train_num_updates="40"),
    inner(2, 1.5, 60, "6.0"),
    record("valid", epoch=2, valid_loss="7.5", valid_num_updates="80"),
    record("train", epoch=2, train_loss="6.5", train_num_updates="80"),
]


def test_parse_takes_records_only():
    assert parse(LOG[2]) == ("train_inner", {"epoch": 1, "update": 0.25, "loss": 9.5, "num_updates": 10, "lr": 0.001})
    assert parse(LOG[0]) is None
    assert parse("") is None
    assert parse("2026-01-01 10:00:00 | INFO | train_inner | {cut off") is None
    assert parse("2026-01-01 10:00:00 | INFO | train_inner | {cut off}") is None


def test_summary_of_a_log_with_a_resumed_session():
    assert summary([*LOG[:6], *LOG[:2], *LOG[6:]]) == {
        "parameters": 2245632,
        "updates": 80,
        "first_loss": 9.5,
        "last_loss": 6.0,
        "valid_loss": 7.25,
        "valid_bleu": None,
        "seconds": 0.0,
    }


def test_seconds_are_those_of_every_session():
    # The second session was killed between its records, and the third one ends later than the second.
    walls = [(20, 55), (7,), (30, 60)]
    log = [line for session in walls for line in (LOG[0], *(record("train_inner", wall=str(w)) for w in session))]
    assert summary([*log, record("train", train_wall="62")])["seconds"] == 55 + 7 + 62


def test_updates_of_a_training_killed_behind_its_last_save():
    log = [inner(2, 1.9, 70), record("valid", epoch=2, valid_loss="7.5", valid_num_updates="77"), LOG[0], LOG[1]]
    assert summary(log)["updates"] == 77


def test_best_validation_bleu():
    assert summary([record("valid", valid_loss="4", valid_bleu=x) for x in ("9", "11.5", "10")])["valid_bleu"] == 11.5


def test_summary_of_an_empty_log_is_unknown():
    assert summary([]).pop("seconds") == 0
    assert {value for key, value in summary([]).items() if key != "seconds"} == {None}


def test_best_validation_loss_is_a_number_json_can_hold():
    assert summary([record("valid", valid_loss="nan")])["valid_loss"] is None
    assert summary([record("valid", valid_loss=x) for x in ("nan", "3.5", "inf", "3.0", "nan")])["valid_loss"] == 3.0


@pytest.mark.parametrize(
    "losses, problem",
    [
        ((9.0, 8.0), None),
        ((9.0, 9.0), "did not fall"),
        ((9.0, math.nan), "not finite"),
        ((math.inf, 8.0), "not finite"),
        ((None, None), "no loss"),
    ],
)
def test_loss_problem(losses, problem):
    found = loss_problem({"first_loss": losses[0], "last_loss": losses[1]})
    assert found is None if problem is None else problem in found


def test_total_and_remaining_time_from_the_fraction_of_the_epoch():
    now = [100.0]
    state = TrainingProgress(max_epoch=4, clock=lambda: now[0])
    assert state.total is None and state.remaining() is None
    state.feed(inner(1, 0.25, 10))
    assert (state.total, state.updates, state.remaining()) == (160, 10, None)
    now[0] += 5
    state.feed(inner(1, 0.5, 20))
    assert state.remaining() == pytest.approx(140 * 5 / 10)
    state.feed(record("train", epoch=1, train_num_updates="41", train_loss="5"))
    assert (state.total, state.epoch) == (164, 1)


def test_resumed_session_counts_all_updates_but_only_its_own_speed():
    now = [0.0]
    state = TrainingProgress(max_epoch=4, clock=lambda: now[0])
    state.feed(inner(3, 2.25, 90))
    now[0] += 10
    state.feed(inner(3, 2.5, 100))
    assert (state.total, state.updates) == (160, 100)
    assert state.remaining() == pytest.approx(60)


def test_limit_of_updates_beats_that_of_epochs():
    state = TrainingProgress(max_epoch=7, max_update=20)
    assert state.total == 20
    state.feed(inner(1, 0.0025, 1))
    assert state.total == 20


def test_a_line_an_epoch_and_one_a_minute():
    now, said = [0.0], []
    display = TrainingDisplay(TrainingProgress(max_epoch=2, clock=lambda: now[0]), said.append)
    for line in LOG:
        now[0] += 25
        display.line(line)
    first, second, last = said
    assert first.startswith("epoch 1, 10 of 80 updates: training loss 9.500")  # after more than a minute
    assert "epoch 1, 40 of 80 updates" in second and "validation loss 7.250" in second and "left" in second
    assert "epoch 2, 80 of 80 updates" in last and "left" not in last


def test_training_without_validation_shows_no_loss_of_it():
    said = []
    display = TrainingDisplay(TrainingProgress(max_update=4), said.append)
    display.line(record("train", epoch=1, train_num_updates="4", train_loss="5"))
    assert said == ["epoch 1, 4 of 4 updates: training loss 5.000"]


def test_a_clock_that_goes_backwards_gives_no_negative_time():
    now = [100.0]
    state = TrainingProgress(max_update=100, clock=lambda: now[0])
    state.feed(inner(1, 0.25, 10))
    now[0] -= 50
    state.feed(inner(1, 0.5, 20))
    assert state.remaining() == 0
    assert summary([record("train_inner", wall="-5"), record("train", train_wall="-7")])["seconds"] == 0
