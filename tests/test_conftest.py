"""What holds for a run of tests in processes of pytest-xdist."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests import requirements

ROOT = Path(__file__).resolve().parents[1]
# slow, as the conftest.py of its folder says
SLOW = "tests/fairseq_tools/test_documented.py::test_each_training_has_a_folder_of_its_own"
FILES = (
    "tests/ops/test_by_hand.py",
    SLOW,
    "tests/cuda/test_glue.py::test_outputs_have_the_order_of_dimensions_of_their_inputs",
)


@pytest.mark.slow
@pytest.mark.skipif(requirements.missing("cuda") is None, reason="there is a GPU")
def test_what_is_required_and_who_served_and_slow_ones_first(forked_python):
    options = ("-v", "-p", "no:cacheprovider", "-n", "1", "--dist", "loadgroup")
    command = [forked_python.program, "-m", "pytest", *options, *FILES]
    environment = os.environ | {"FWP_REQUIRE": "native,cuda"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "FWP_REQUIRE wants " in done.stdout and ", 1 error in " in done.stdout
    counts = re.search("calls served by backend in the processes of the tests: (.*)", done.stdout)[1]
    assert re.search(r"\breference on cpu [1-9]", counts) and "chunked on cpu" in counts, counts
    assert re.search(r"^\[gw0\] .* PASSED (\S+)", done.stdout, re.M)[1].startswith(SLOW)
