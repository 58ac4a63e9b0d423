"""The tests for a GPU, a part of them, on a CPU that emulates one: see emulated_device.py."""

import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from fwp_fairseq import _extension
from scripts.kernel_resources import find_nvcc

PARTS = {"kernels": ["test_kernels.py", "test_races.py"], "ptx": ["test_ptx.py"], "others": []}


@pytest.mark.slow
@pytest.mark.needs("native")
@pytest.mark.skipif(_extension.status().cuda, reason="the CUDA library is loaded: the tests run on it")
@pytest.mark.parametrize("part", PARTS)
def test_operators_on_an_emulated_device(part):
    if part == "ptx" and not find_nvcc():
        pytest.skip("there is no nvcc")
    folder = Path(__file__).parent
    chosen = [folder / name for name in PARTS[part]]
    if not chosen:
        chosen = [folder, *(f"--ignore={folder / name}" for name in (*chain(*PARTS.values()), __file__))]
    environment = os.environ | {"FWP_REQUIRE": "native,cuda", "PYTHONPATH": str(Path(__file__).parents[2])}
    environment |= {"FWP_SHIM_PTX": str(int(part == "ptx"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.cuda.emulated_device"]
    command += [*map(str, chosen), "-m", "needs", "-n", "0"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-3000:]
    assert " passed" in run.stdout and "skipped" not in run.stdout, run.stdout[-1000:]
