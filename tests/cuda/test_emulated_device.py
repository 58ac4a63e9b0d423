"""The tests for a GPU, a part of them, on a CPU that emulates one: see emulated_device.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fwp_fairseq import _extension

# Everything about the glue; of the kernels' tests, which run on the shim without it too, some of each kind of call.
# Tracing a graph wants more of a device than can be emulated.
TESTS = (
    "not aot_dispatch and (test_glue or recurrence_glue or row_function_glue"
    " or test_states and bfloat16 or every_instance and 16-delta"
    " or lengths and 255-delta or gated and many_columns"
    " or decode and (opcheck or names_what or any_reordering or pads_write)"
    " or sources_are_shared and delta and (20 or 50) and float16)"
)


@pytest.mark.slow
@pytest.mark.needs("native")
@pytest.mark.skipif(_extension.status().cuda, reason="the CUDA library is loaded: the tests run on it")
def test_operators_on_an_emulated_device():
    environment = os.environ | {"FWP_REQUIRE": "native,cuda", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.cuda.emulated_device"]
    command += [str(Path(__file__).parent), "-m", "needs", "-k", TESTS]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-3000:]
    assert " passed" in run.stdout and "skipped" not in run.stdout, run.stdout[-1000:]
