"""compare.py: paired bootstrap of finished rows against a baseline."""

import os
import random
import subprocess
import sys
from pathlib import Path

from scripts.experiments.by_site.recipe import PRESETS

ROOT = Path(__file__).resolve().parents[2]
WORDS = ("the", "a", "dog", "cat", "man", "runs", "sees", "and", "on", "street")
MODULE = "scripts.experiments.by_site.compare"


def compare(out, *arguments):
    command = [sys.executable, "-m", MODULE, "--preset", "sites", "--out", str(out), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)


def write(path: Path, lines):
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def test_a_worse_system_is_found(tmp_path):
    draw = random.Random(1)
    reference = [" ".join(draw.choices(WORDS, k=12)) for _ in range(200)]
    write(tmp_path / "data" / PRESETS["sites"].reference, reference)
    for row, every, first in (
        ("softmax-softmax-softmax", 4, 0),
        ("dpfp-dpfp-dpfp", 2, 0),
        ("softmax-window-softmax", 4, 1),
    ):
        spoilt = [" ".join(reversed(line.split())) for line in reference]
        lines = [spoilt[n] if n % every == first else line for n, line in enumerate(reference)]
        translations = [f"D-{n}\t-1.0\t{line}" for n, line in enumerate(lines)]
        write(tmp_path / f"{row}-seed1/generate/generate-test.txt", translations)
    done = compare(tmp_path, "--rows", "dpfp-dpfp-dpfp", "softmax-window-softmax")
    assert done.returncode == 0, done.stderr
    worse, same = done.stdout.splitlines()
    assert worse.startswith("dpfp-dpfp-dpfp-seed1: BLEU ") and float(worse.rsplit("= ")[-1]) < 0.01
    assert same.startswith("softmax-window-softmax-seed1: BLEU ") and float(same.rsplit("= ")[-1]) > 0.1
    done = compare(tmp_path, "--rows", "dpfp-dpfp-dpfp", "--seeds", 2)
    assert done.returncode == 1 and "--rows softmax-softmax-softmax --seeds 2 makes it" in done.stderr
    assert compare(tmp_path, "--rows", "absent").returncode == 2
