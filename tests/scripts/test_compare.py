"""--compare: paired bootstrap of finished rows against a baseline."""

import os
import random
import shlex
import subprocess
from pathlib import Path

import pytest

from scripts.experiments.by_site.recipe import PRESETS
from tests.pages import ROOT, command

WORDS = ("the", "a", "dog", "cat", "man", "runs", "sees", "and", "on", "street")
COMPARE = command(
    "scripts/experiments/by_site/README.md",
    "python -m scripts.experiments by_site --preset sites --rows dpfp,d-dot=256_dpfp,d-dot=256_softmax",
)

ROW = COMPARE.partition("--rows ")[2].split()[0].replace(",", "+")  # in the names of folders


def compare(python, out, *arguments):
    """The page's command with runs of this folder; the arguments win."""
    words = [python, *shlex.split(COMPARE)[1:], "--out", str(out), *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)


def write(path: Path, lines):
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.slow
def test_a_worse_system_is_found(tmp_path, forked_python):
    draw = random.Random(1)
    reference = [" ".join(draw.choices(WORDS, k=12)) for _ in range(200)]
    write(tmp_path / "data" / PRESETS["sites"].reference, reference)
    spoilt_lines = {f"softmax-seed{seed}": (4, 0) for seed in (1, 2, 3)}
    spoilt_lines |= {f"{ROW}-seed{seed}": (4, 1) if seed == 2 else (2, 0) for seed in (1, 2, 3)}
    for run, (every, first) in spoilt_lines.items():
        spoilt = [" ".join(reversed(line.split())) for line in reference]
        lines = [spoilt[n] if n % every == first else line for n, line in enumerate(reference)]
        write(tmp_path / run / "generate/generate-test.txt", [f"D-{n}\t-1.0\t{line}" for n, line in enumerate(lines)])
    done = compare(forked_python.program, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0].replace(",", "+") for line in lines] == [f"{ROW}-seed{seed}" for seed in (1, 2, 3)]
    worse, same, _ = (float(line.rsplit("= ")[-1]) for line in lines)
    assert worse < 0.01 and same > 0.1
    done = compare(forked_python.program, tmp_path, "--seeds", 4)
    assert done.returncode == 1 and "--rows softmax --seeds 4 makes it" in done.stderr
