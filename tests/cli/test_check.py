"""fwp check: what is loaded, the comparison of every device's kernels, and the exit status."""

import os

import pytest
import torch

from fwp_fairseq import _extension, _gpu_check
from fwp_fairseq.cli import check


@pytest.mark.needs("native")
def test_the_cpus_kernels_are_compared_and_what_is_switched_off_is_said(fwp_process):
    environment = os.environ | {"FWP_CUDA": "0"}
    found = fwp_process("check", env=environment)
    assert found.status == 0 and found.out.endswith("right: cpu\n"), found
    assert "delta rule, 300 positions: error" in found.out and "sum_rule on cpu           native" in found.out
    assert "switched off by FWP_CUDA=0" in found.out
    assert "switched off by FWP_CUDA=0" in fwp_process("info", env=environment).out


@pytest.fixture
def two_gpus(monkeypatch, tmp_path):
    """Stand-ins: what a check of each device finds can be changed."""
    found = dict.fromkeys(("cpu", "cuda:0", "cuda:1"), _gpu_check.Verdict("", "sum rule: ok\npassed\n"))
    status = _extension.ExtensionStatus({"cpu": tmp_path, "cuda": tmp_path}, {})
    monkeypatch.setattr(_extension, "status", lambda: status)
    monkeypatch.setattr(torch.ops.fwp, "cpu_capability", lambda: "avx2", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(_gpu_check, "key", str)
    monkeypatch.setattr(_gpu_check, "check", lambda device, seconds: found[device])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return found


def test_a_device_that_fails_makes_the_command_fail(fwp, two_gpus, monkeypatch):
    """And all are checked before this process uses one, which a check could not then."""
    checked = []
    monkeypatch.setattr(check, "_checked", lambda device, run=check._checked: checked.append(device) or run(device))
    monkeypatch.setattr(check, "served_rows", lambda: {"after": " ".join(checked)})
    assert fwp("check").out.endswith("after  cpu cuda:0 cuda:1\n\nright: cpu, cuda:0, cuda:1\n")
    two_gpus["cuda:1"] = _gpu_check.Verdict("sum rule: WRONG", "sum rule: WRONG\n")
    found = fwp("check")
    ends = "right: cpu, cuda:0\nwrong: cuda:1\n"
    assert found.status == 1 and found.out.endswith(ends), "the kept result was taken"
    assert "kernels of cuda:1, GPU 1\n  sum rule: WRONG\n\n  WRONG: sum rule: WRONG" in found.out
    assert _gpu_check.remembered("1", lambda: None).failure == "sum rule: WRONG", "it is not kept for trainings"


def test_a_device_that_is_busy_is_neither_right_nor_wrong(fwp, two_gpus):
    """And what is known of it stays known."""
    fwp("check")
    two_gpus["cuda:0"] = _gpu_check.Verdict("it is busy", "it is busy\n", lasts=False)
    found = fwp("check")
    assert found.status == 1 and found.out.endswith("right: cpu, cuda:1\nnot checked: cuda:0\n")
    assert "  NOT CHECKED: it is busy" in found.out and _gpu_check.remembered("0", lambda: None).failure == ""


def test_without_any_kernels_nothing_is_called_right(fwp, monkeypatch):
    status = _extension.ExtensionStatus({}, dict.fromkeys(_extension.PARTS, "not built"))
    monkeypatch.setattr(_extension, "status", lambda: status)
    found = fwp("check")
    assert found.status == 1 and found.out.endswith("nothing was checked: no compiled kernels are loaded\n")
