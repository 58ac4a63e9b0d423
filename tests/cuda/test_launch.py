"""How csrc/cuda/kernels/device.cuh asks for a kernel and starts it, compiled by nvcc, where the device refuses it."""

import subprocess
from pathlib import Path

import pytest

from scripts.kernel_resources import find_nvcc
from tests.cuda.compiled import CUDA


@pytest.mark.slow
@pytest.mark.skipif(find_nvcc() is None, reason="there is no nvcc")
def test_a_refused_launch_leaves_no_error_behind(tmp_path):
    """And asks for all the shared memory that the device has, whatever the call needs."""
    sources = [Path(__file__).with_name(name) for name in ("refused_launch.cu", "refusing_runtime.cpp")]
    options = ["-std=c++17", "-arch=sm_80", "-cudart", "none", f"-I{CUDA}", "-o", tmp_path / "program"]
    subprocess.run([find_nvcc(), *options, *sources], check=True)
    assert subprocess.run([tmp_path / "program"]).returncode == 0
