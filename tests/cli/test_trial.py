"""The time of an update is measured once, and kept for the next call."""

import sys

import pytest

from fwp_fairseq.cli.trial import seconds_per_update

# Writes records of six updates, as fairseq-train does, 0.01 s apart, whatever flags follow.
CODE = "import time\nfor _ in range(6):\n    print(' | INFO | train_inner | {}'), time.sleep(0.01)"


@pytest.mark.parametrize("damage", ["nan", "inf", "-1", "0", "", "\0\0\0\0", "\udcff"])
def test_a_damaged_record_is_measured_again(tmp_path, damage):
    kept = tmp_path / "seconds_per_update"
    kept.write_text(damage, errors="surrogateescape")
    seconds = seconds_per_update([sys.executable, "-u", "-c", CODE], kept)
    assert 0.01 <= seconds < 1 and float(kept.read_text()) == pytest.approx(seconds, abs=1e-6)
    kept.write_text("2.5\n")
    assert seconds_per_update([sys.executable, "-c", "raise SystemExit(1)"], kept) == 2.5
