"""The numeric tests of a file again, where a lower instruction set of the compiled CPU kernels is forced.

They carry the marker ``every_instruction_set``.
"""

import os
import subprocess
import sys

import pytest
import torch

INNER = "FWP_CPU_CAPABILITY" in os.environ


def run_again(file: str, capability: str, *arguments: str) -> None:
    """In a new process. ``capability``: default, avx2 or avx512; skips what this processor lacks or runs anyway."""
    environment = os.environ | {"FWP_CPU_CAPABILITY": capability}
    name = [sys.executable, "-c", "import fwp_fairseq.ops, torch; print(torch.ops.fwp.cpu_capability())"]
    runs = subprocess.run(name, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    if runs != capability:
        pytest.skip(f"this processor has no {capability}")
    if capability == torch.ops.fwp.cpu_capability().replace("amx_bf16", "avx512"):  # the same kernels for these types
        pytest.skip("the other tests run it")
    run_marked(file, capability, *arguments)


def run_marked(file: str, capability: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", file]
    command += ["-m", "every_instruction_set", *arguments]
    environment = os.environ | {"FWP_CPU_CAPABILITY": capability}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:]
