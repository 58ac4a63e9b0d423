"""The summary of a training's log."""

from scripts.common.training import summary
from tests.cli.test_progress import LOG, record


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
    assert {value for key, value in summary([]).items() if key != "seconds"} == {None}


def test_seconds_are_those_of_every_session():
    # The second session was killed between its records, and the third one ends later than the second.
    walls = [(20, 55), (7,), (30, 60)]
    log = [line for session in walls for line in (LOG[0], *(record("train_inner", wall=str(w)) for w in session))]
    assert summary([*log, record("train", train_wall="62")])["seconds"] == 55 + 7 + 62


def test_a_clock_that_goes_backwards_takes_no_seconds_away():
    assert summary([record("train_inner", wall="-5"), record("train", train_wall="-7")])["seconds"] == 0
