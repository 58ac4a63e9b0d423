"""The check of kernels before their first use: what it finds, how it ends, what is kept, what is not used then."""

import json
import logging
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fwp_fairseq import _extension, _gpu_check, _operator, ops
from fwp_fairseq.feature_maps import unit_rows
from fwp_fairseq.ops import RULES, native, self_check
from tests.cuda.cases import make

HALF = torch.float16
CACHES = (_gpu_check.failure, _operator.refusal)


@pytest.fixture
def unchecked(monkeypatch, tmp_path):
    """A process that has not checked anything, on a device whose identity is "device"."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_gpu_check, "_trusting", False)
    monkeypatch.setattr(_gpu_check, "key", lambda index: "device")
    for cached in CACHES:
        cached.cache_clear()
    yield tmp_path
    for cached in CACHES:
        cached.cache_clear()


@pytest.mark.needs("native")
def test_a_wrong_kernel_is_found_and_named(monkeypatch, capsys):
    def wrong(call):
        out, state = right(call)
        return out * 1.02, state

    right = native.run
    monkeypatch.setattr(_gpu_check, "_trusting", False)
    monkeypatch.setattr(native, "run", wrong)
    assert self_check.main("cpu") == 1
    report = capsys.readouterr().out
    assert (
        report.count("WRONG") == 3 * len(RULES)
        and "delta rule, 300 positions: error 2.0e-02, at most 1e-04: WRONG" in report
    )
    assert "decoding: error" in report and _gpu_check.PASSED not in report


BUSY = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"


@pytest.mark.parametrize(
    "error, opens, status, said",
    [
        (RuntimeError, False, 3, "PyTorch cannot use the device: {}"),
        (torch.OutOfMemoryError, True, 3, "sum rule, 32 positions: OutOfMemoryError: {}"),
        (NotImplementedError, True, 3, "sum rule, 32 positions: NotImplementedError: {}"),
        (RuntimeError, True, 1, "sum rule, 32 positions: RuntimeError: {}"),
    ],
)
def test_an_error_is_said_in_one_line(error, opens, status, said, monkeypatch, capsys):
    """Those of a device that cannot be used are told from those of a kernel."""

    def fail(*given):
        raise error(f"{BUSY}\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.")

    monkeypatch.setattr(_gpu_check, "_trusting", False)
    monkeypatch.setattr(self_check, "_rule" if opens else "_open", fail)
    assert self_check.main("cpu") == status
    assert capsys.readouterr().out == said.format(BUSY) + "\n"


@pytest.mark.parametrize(
    "script, expected, lasts",
    [
        ("echo 'a: ok'; echo passed", "", True),
        ("echo 'a: ok'; echo 'b: WRONG'; exit 1", "b: WRONG; exit status 1", True),
        ("printf 'b: '; echo trace >&2; echo illegal access >&2; kill -SEGV $$", "b: ; illegal access; exit", True),
        ("echo 'a: ok'", "exit status 0", True),
        # What says nothing about the kernels.
        ("echo 'a: ok'; printf 'b: '; exec sleep 60", "b: ; not finished after 1 s", False),
        ("echo 'a: ok'; echo 'b: out of memory'; exit 3", "b: out of memory; exit status 3", False),
        ("printf 'a: '; kill -KILL $$", "a: ; exit status -9", False),
        ("echo 'no module named torch' >&2; exit 1", "no module named torch; exit status 1", False),
        (None, "could not start", False),
    ],
)
def test_how_a_check_ends(script, expected, lasts, monkeypatch, tmp_path):
    program = tmp_path / "python"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(stat.S_IRWXU)
    monkeypatch.setattr(sys, "executable", str(program))
    found = _gpu_check.check("cuda:0", seconds=1)
    assert found.failure.startswith(expected) and bool(found.failure) == bool(expected) and found.lasts == lasts


@pytest.mark.parametrize("lasts", [True, False])
def test_ranks_wait_for_one_check(unchecked, lasts):
    """Threads stand for processes: each opens the lock for itself."""
    begun, ready = [], threading.Event()

    def check():
        begun.append(1)
        ready.wait(1)
        return _gpu_check.Verdict("", "report", lasts)

    found = []
    ranks = [threading.Thread(target=lambda: found.append(_gpu_check.remembered("x", check))) for _ in range(4)]
    for rank in ranks:
        rank.start()
    ready.set()
    for rank in ranks:
        rank.join()
    assert len(begun) == 1 and found == [("", "report", lasts)] * 4


def test_what_is_kept_and_when_it_is_found_out_again(unchecked):
    verdicts = iter("0123456789")

    def ask(name="x", again=False, lasts=True):
        return _gpu_check.remembered(name, lambda: _gpu_check.Verdict(next(verdicts), "", lasts), again).failure

    assert [ask(), ask(), ask("y"), ask(again=True), ask()] == ["0", "0", "1", "2", "2"]
    (_gpu_check.folder() / "check-x.json").write_text('{"failure": ')
    assert [ask(), ask()] == ["3", "3"]
    assert [ask("z", lasts=False), ask("z", lasts=False), ask("z"), ask("z")] == ["4", "5", "6", "6"]
    assert [ask("z", again=True, lasts=False), ask("z")] == ["7", "6"], "what was known is lost"


def test_the_key_is_of_library_driver_torch_and_device(monkeypatch, tmp_path):
    library, device = tmp_path / "library.so", SimpleNamespace(name="H100", major=9, minor=0)
    driver = tmp_path / "version"
    monkeypatch.setattr(_gpu_check, "_DRIVER", driver)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 12080, raising=False)
    monkeypatch.setattr(_extension, "status", lambda: SimpleNamespace(libraries={"cuda": library}))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)
    library.write_bytes(b"one")
    keys = [_gpu_check.key(0)]
    assert keys == [_gpu_check.key(1)]  # a device of the same kind
    library.write_bytes(b"two")
    keys.append(_gpu_check.key(0))
    for name, value in (("name", "A100"), ("major", 8), ("minor", 6)):
        setattr(device, name, value)
        keys.append(_gpu_check.key(0))
    monkeypatch.setattr(torch, "__version__", "9.9")
    keys.append(_gpu_check.key(0))
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13000)
    keys.append(_gpu_check.key(0))
    for version in ("570.86.15", "580.95.05"):
        driver.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}")
        keys.append(_gpu_check.key(0))
    assert len(set(keys)) == len(keys) == 9


@pytest.mark.needs("native", "cuda")
def test_what_fails_its_check_is_not_used(unchecked, monkeypatch, caplog):
    """By rules, decoding, recurrences and row functions; one warning in all, and PyTorch computes."""
    monkeypatch.setattr(_gpu_check, "check", lambda device: _gpu_check.Verdict(f"{device} is wrong", ""))
    x, phi = make("delta", 5, 5, dtype=HALF, d_value=16)
    x = {name: y.cuda() for name, y in x.items()}
    z, k, v = (x[name].float() for name in "qkv")
    message = r"failed their check on device 0 \(cuda:0 is wrong\); `fwp check` repeats it"
    with caplog.at_level(logging.WARNING):
        for refused in (
            lambda: ops.delta_rule(*x.values(), feature_map=phi.to("cuda"), backend="native"),
            lambda: ops.Decoding("delta", None, True, False, backend="native").serves(x["k"]),
            lambda: ops.recur(z, k, v, x["beta"], backend="native"),
        ):
            with pytest.raises(NotImplementedError, match=message):
                refused()
        assert ops.delta_rule(*x.values(), feature_map=phi.to("cuda"))[0].isfinite().all()
        assert not ops.Decoding("delta", None, True, False).serves(x["k"])
    assert (
        unit_rows.to_length_one.backends["native"].unsupported_reasons(z)
        and unit_rows.to_length_one(z, 1e-6).isfinite().all()
    )
    assert [record.levelname for record in caplog.records if "failed their check" in record.message] == ["WARNING"]


def test_one_warning_says_what_kept_a_check_from_being_done(unchecked, monkeypatch, caplog):
    checks = iter([_gpu_check.Verdict(BUSY, "", lasts=False), _gpu_check.Verdict("", "")])
    monkeypatch.setattr(_gpu_check, "check", lambda device: next(checks))
    reasons = {_gpu_check.failure(0) for _ in range(3)}
    assert [reasons, [record.levelname for record in caplog.records]] == [{_gpu_check.failure(0)}, ["WARNING"]]
    assert f"could not be checked on device 0 ({BUSY}); run `fwp check` before the training" in caplog.text
    _gpu_check.failure.cache_clear()  # as in the next process
    assert _gpu_check.failure(0) == ""


@pytest.mark.parametrize("value, loaded, reason", [
    ("0", [], "switched off by FWP_CUDA=0"), ("no", [], "not loaded: FWP_CUDA=no, expected 0 or 1"), ("1", ["cuda"], "")
])  # fmt: skip
def test_the_switch(value, loaded, reason, monkeypatch, tmp_path):
    """Nothing of CUDA is loaded, so neither rules nor row functions can use it."""
    for part in _extension.PARTS:
        (tmp_path / f"_{part}.abi3.so").write_text(part)
    digests = {part: _extension.digest(tmp_path / f"_{part}.abi3.so") for part in _extension.PARTS}
    (tmp_path / "_build.json").write_text(json.dumps({"target": "cuda", "sha256": digests}))
    read = []
    monkeypatch.setattr(torch.ops, "load_library", lambda path: read.append(Path(path).read_text()))
    for name in _extension.OPERATORS:
        monkeypatch.setattr(torch.ops.fwp, name, None, raising=False)
    monkeypatch.setenv("FWP_CUDA", value)
    assert _extension.load(tmp_path).reasons.get("cuda", "") == reason
    assert read == ["cpu", *loaded]


def test_without_the_library_no_kernel_serves_a_cuda_tensor():
    """As FWP_CUDA=0 has it: rules, decoding, recurrences and functions of rows are PyTorch's."""
    code = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from fwp_fairseq import ops
from fwp_fairseq.feature_maps import softmax_pair, unit_rows
from fwp_fairseq.ops import recurrence
torch.cuda.is_available = lambda: True
with FakeTensorMode():
    x = torch.zeros(1, 4, 2, 8, device="cuda")
    rows = unit_rows.to_length_one, softmax_pair.softmax_pair
    assert all(function.backends["native"].unsupported_reasons(x) for function in rows)
    assert not ops.Decoding("delta", None, True, False).serves(x)
    for reasons in (recurrence._RNN.backends["native"].unsupported_reasons(x), *(
        dict(ops.backends.backend_report(rule, "cuda"))["native"] for rule in ops.call.RULES
    )):
        assert reasons == ["CUDA kernels switched off by FWP_CUDA=0"], reasons
"""
    environment = os.environ | {"FWP_CUDA": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
