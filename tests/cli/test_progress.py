"""How a training's log (--log-format json) is read, and what is said of its progress and that of a translation."""

import io
import json
import time

from tqdm import tqdm

from fwp_fairseq.cli import translate
from fwp_fairseq.cli.progress import Progress, parse


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
    for line in (LOG[0], "", "2026-01-01 10:00:00 | INFO | train_inner | {cut off}"):
        assert parse(line) is None


def said(lines, max_epoch, max_update=0, seconds=25):
    """What is said of lines that come every so many seconds."""
    now, found = [0.0], []
    progress = Progress(max_epoch, max_update, found.append, clock=lambda: now[0])
    for line in lines:
        now[0] += seconds
        progress.line(line)
    return found


def test_a_line_an_epoch_and_one_a_minute_with_the_time_that_is_left():
    first, second, last = said(LOG, 2)
    assert first.startswith("epoch 1, 10 of 80 updates: training loss 9.500")  # after more than a minute
    # 30 updates in 75 seconds since the first one
    assert second == (
        "epoch 1, 40 of 80 updates: training loss 8.000, validation loss 7.250, about 1.7 min of training left"
    )
    assert "epoch 2, 80 of 80 updates" in last and "left" not in last
    assert said(LOG[:3], 0)[0].startswith("epoch 1, 10 updates: ")  # without a limit
    assert "about 13.9 hours of training left" in said(LOG, 0, 20_000)[1]


def test_the_limit_that_comes_first_counts_and_a_clock_may_go_backwards():
    lines = [record("train", epoch=1, train_num_updates=str(n), train_loss="5", update=0.1) for n in (4, 5)]
    assert said(lines, 7, 20, -9) == [
        "epoch 1, 4 of 20 updates: training loss 5.000",
        "epoch 1, 5 of 20 updates: training loss 5.000, about 0 s of training left",
    ]


def test_a_log_of_translations_gets_a_line_at_a_time(monkeypatch):
    """tqdm writes another ten seconds later, unless it compares the time after each translation."""
    log = io.StringIO()
    for name, value in {"monitor": None, "monitor_interval": 0.01}.items():
        monkeypatch.setattr(tqdm, name, value)
    monkeypatch.setattr(translate, "SAY_EVERY_SECONDS", 0.1)
    monkeypatch.setattr("sys.stderr", log)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with translate._bar() as bar:
        time.sleep(0.15)
        bar.update(50)
        bar.last_print_t -= 11
        time.sleep(0.3)
        assert log.getvalue().count("50line") == 1
    tqdm.monitor.exit()
