"""The examples run as their readers run them."""

import json
import os
import re
import subprocess
import sys

import pytest

from examples import last_value, tiny_shakespeare
from tests.pages import ROOT

# Behind a list of packages that are installed and cannot be imported.
RUN = """
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(name: str, *arguments, python=sys.executable, blocked: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    command = [python, "-c", f"blocked = {blocked}{RUN}"] if blocked else [python]
    return subprocess.run(
        [*command, str(ROOT / "examples" / name), *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


SMALL = ("--embed-dim", 16, "--layers", 1, "--heads", 1, "--segment", 16, "--updates", 2, "--characters", 30)


@pytest.mark.slow
def test_tiny_shakespeare(tmp_path, forked_python):
    """Without fairseq and matplotlib: it says so, and writes the losses and a sample; with it, the picture."""
    blocked = ("fairseq", "omegaconf", "hydra", "sacrebleu", "matplotlib")
    plain = run("tiny_shakespeare.py", *SMALL, "--out", tmp_path, blocked=blocked)
    assert plain.returncode == 0, plain.stderr
    assert "matplotlib is not installed" in plain.stdout and not (tmp_path / "losses.svg").exists()
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert len(losses["training"]) == 2 and list(losses["valid"]) == ["1", "2"]
    assert losses["valid"]["2"] < losses["valid"]["1"]
    written = (tmp_path / "sample.txt").read_text()
    assert written.startswith("ROMEO:\n") and len(written) == len("ROMEO:\n") + 30 + 1
    drawn = run("tiny_shakespeare.py", *SMALL, "--kind", "rfa", "--out", tmp_path, python=forked_python.program)
    assert drawn.returncode == 0, drawn.stderr
    assert "nats per character" in (tmp_path / "losses.svg").read_text()


@pytest.mark.slow
def test_the_last_value_is_learned_by_the_kind_and_not_by_the_rule_alone(tmp_path, forked_python):
    done = subprocess.run(
        [forked_python.program, str(ROOT / "examples/last_value.py")], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    accuracies = {name: float(x) for name, x in re.findall(r"(.*): accuracy (.*)", done.stdout)}
    assert list(accuracies) == list(last_value.KINDS)
    assert accuracies["delta"] > 0.98 and accuracies["dpfp with the delta rule"] < 0.6
    assert (tmp_path / "last_value.svg").stat().st_size > 10_000


def test_last_values_are_those_of_a_loop():
    tokens, expected = last_value.batch(20)
    for row, values in zip(tokens.tolist(), expected.tolist(), strict=True):
        known = {}
        for key, value, wanted in zip(row[::2], row[1::2], values, strict=True):
            assert wanted == known.get(key, -100)
            known[key] = value - 8


@pytest.mark.parametrize(
    "options, message",
    [
        (("--prompt", "Müller"), "--prompt: ['ü'] are not in the text"),
        (
            ("--kind", "softmax"),
            "--kind softmax: its state grows with the text, expected fast weights",
        ),
    ],
    ids=str,
)
def test_tiny_shakespeare_refuses(options, message, tmp_path, capsys):
    assert tiny_shakespeare.main([*map(str, SMALL), *options, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines() == [f"tiny_shakespeare: error: {message}"]
    assert not (tmp_path / "losses.json").exists()
