"""The time of an update is measured once, and kept for the next call."""

import math
import sys

import pytest

from fwp_fairseq.cli.plan import ATTENTION
from fwp_fairseq.cli.trial import seconds_per_update, without

# Writes records of six updates, as fairseq-train does, 0.01 s apart, whatever flags follow.
CODE = "import time\nfor _ in range(6):\n    print(' | INFO | train_inner | {}'), time.sleep(0.01)"


@pytest.mark.parametrize("damage", ["nan", "inf", "-1", "0", "", "\0\0\0\0", "\udcff"])
def test_a_damaged_record_is_measured_again(tmp_path, damage):
    kept = tmp_path / "seconds_per_update"
    kept.write_text(damage, errors="surrogateescape")
    seconds = seconds_per_update([sys.executable, "-u", "-c", CODE], kept)
    number, command = kept.read_text().splitlines()
    assert 0 < seconds < math.inf and float(number) == pytest.approx(seconds, abs=1e-6) and sys.executable in command


def test_flags_go_with_their_values():
    flags = ["--fwp-feature-map", "dpfp", "--dropout", "0", "--fwp-d-dot=96", "--lr", "1", "--fwp-output-norm"]
    assert without(flags, ATTENTION) == ["--dropout", "0", "--lr", "1"]


def test_the_updates_are_reported_nowhere(tmp_path):
    """Neither to TensorBoard nor to a file of the training to come."""
    code = CODE + "\nimport sys; open(sys.argv[1], 'w').write(' '.join(sys.argv))"
    words = [sys.executable, "-u", "-c", code, str(tmp_path / "seen"), "--tensorboard-logdir", "tb", "--lr", "1"]
    assert seconds_per_update([*words, "--wandb-project", "p", "--log-file=log"], tmp_path / "kept")
    seen = (tmp_path / "seen").read_text()
    assert "--lr 1" in seen and not any(word in seen for word in ("tb", "wandb", "log-file"))


def test_a_longer_training_is_not_measured_again_and_one_with_other_flags_is(tmp_path):
    kept, command = tmp_path / "seconds_per_update", [sys.executable, "-u", "-c", CODE]
    seconds_per_update([*command, "--max-update", "100", "--patience", "10"], kept)
    kept.write_text(f"2.5\n{kept.read_text().splitlines()[1]}\n")
    assert (
        seconds_per_update([*command, "--max-update", "9", "--patience", "20", "--save-interval-updates", "1"], kept)
        == 2.5
    )
    assert seconds_per_update([*command, "--dropout", "0.1"], kept) != 2.5
    assert seconds_per_update([*command, "--dropout", "0.1", "--max-epoch=3"], kept) != 2.5  # it kept the new one
