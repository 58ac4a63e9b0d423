"""The check of kernels before their first use: what it finds, how it ends, what is kept, what it switches off."""

import logging
import stat
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from fwp_fairseq import _cuda_library, _extension, _self_check, ops
from fwp_fairseq.feature_maps import unit_rows
from fwp_fairseq.ops import backends, native, native_cuda, self_check
from tests.cuda.cases import make

HALF = torch.float16
CACHES = (_self_check.failure, _cuda_library.refusal)


@pytest.fixture
def unchecked(monkeypatch, tmp_path):
    """A process that has not checked anything, on a device whose identity is "device"."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_self_check, "_trusting", False)
    monkeypatch.setattr(_self_check, "key", lambda index: "device")
    for cached in CACHES:
        cached.cache_clear()
    yield tmp_path
    for cached in CACHES:
        cached.cache_clear()


@pytest.mark.slow
@pytest.mark.needs("native", "cuda")
@pytest.mark.parametrize("name", [name for name, _ in self_check.cases("cuda")])
def test_the_kernels_of_a_device_pass(name):
    assert dict(self_check.cases("cuda"))[name]() <= self_check.LIMITS["cuda"]


@pytest.mark.needs("native")
def test_a_wrong_kernel_is_found_and_named(monkeypatch, capsys):
    def wrong(call):
        out, state = right(call)
        return out * 1.02, state

    right = native.run
    monkeypatch.setattr(_self_check, "_trusting", False)
    monkeypatch.setattr(native, "run", wrong)
    assert self_check.main("cpu") == 1
    report = capsys.readouterr().out
    assert report.count("WRONG") == 12 and "delta rule, 300 positions: error 2.0e-02, at most 1e-04: WRONG" in report
    assert "decoding: error" in report and _self_check.PASSED not in report


@pytest.mark.parametrize(
    "script, expected",
    [
        ("echo 'a: ok'; echo passed", ""),
        ("echo 'a: ok'; echo 'b: WRONG'; exit 1", "b: WRONG; exit status 1"),
        ("echo 'a: ok'; printf 'b: '; echo trace >&2; echo illegal access >&2; kill -SEGV $$", "b: ; illegal access; "),
        ("echo 'a: ok'; printf 'b: '; exec sleep 60", "b: ; not finished after 1 s"),
        ("echo 'a: ok'", "it printed no result"),
        (None, "could not start"),
    ],
)
def test_how_a_check_ends(script, expected, monkeypatch, tmp_path):
    program = tmp_path / "python"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(stat.S_IRWXU)
    monkeypatch.setattr(_self_check, "SECONDS", 1)
    monkeypatch.setattr(sys, "executable", str(program))
    found = _self_check.check("cuda:0")
    assert found.failure.startswith(expected) and bool(found.failure) == bool(expected)


def test_ranks_wait_for_one_check(unchecked):
    """Threads stand for processes: each opens the lock for itself."""
    begun, ready = [], threading.Event()

    def check():
        begun.append(1)
        ready.wait(1)
        return _self_check.Verdict("", "report")

    found = []
    ranks = [threading.Thread(target=lambda: found.append(_self_check.remembered("x", check))) for _ in range(4)]
    for rank in ranks:
        rank.start()
    ready.set()
    for rank in ranks:
        rank.join()
    assert len(begun) == 1 and found == [("", "report")] * 4


def test_what_is_kept_and_when_it_is_found_out_again(unchecked):
    verdicts = iter(range(9))

    def ask(name="x", again=False):
        return _self_check.remembered(name, lambda: _self_check.Verdict(str(next(verdicts)), ""), again).failure

    assert [ask(), ask(), ask("y"), ask(again=True), ask()] == ["0", "0", "1", "2", "2"]
    (_self_check.folder() / "check-x.json").write_text('{"failure": ')
    assert [ask(), ask()] == ["3", "3"]


def test_without_a_folder_every_process_checks(unchecked, monkeypatch):
    (unchecked / "cache").write_text("a file")
    assert [_self_check.remembered("x", lambda n=n: _self_check.Verdict(n, "")).failure for n in "ab"] == ["a", "b"]


def test_the_key_is_of_library_torch_and_device(monkeypatch, tmp_path):
    library, device = tmp_path / "library.so", SimpleNamespace(name="H100", major=9, minor=0)
    monkeypatch.setattr(_extension, "status", lambda: SimpleNamespace(libraries={"cuda": library}))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)
    library.write_bytes(b"one")
    keys = [_self_check.key(0)]
    assert keys == [_self_check.key(1)]  # a device of the same kind
    library.write_bytes(b"two")
    keys.append(_self_check.key(0))
    for name, value in (("name", "A100"), ("major", 8), ("minor", 6)):
        setattr(device, name, value)
        keys.append(_self_check.key(0))
    monkeypatch.setattr(torch, "__version__", "9.9")
    keys.append(_self_check.key(0))
    assert len(set(keys)) == len(keys) == 6


@pytest.mark.needs("native", "cuda")
def test_what_fails_its_check_is_not_used(unchecked, monkeypatch, caplog):
    """By rules, decoding, recurrences and row functions; one warning in all, and PyTorch computes."""
    monkeypatch.setattr(_self_check, "check", lambda device: _self_check.Verdict(f"{device} is wrong", ""))
    x, phi = make("delta", 5, 5, dtype=HALF, d_value=16)
    x = {name: y.cuda() for name, y in x.items()}
    z, k, v = (x[name].float() for name in "qkv")
    message = r"failed their check on device 0 \(cuda:0 is wrong\); `fwp check` repeats it"
    with caplog.at_level(logging.WARNING):
        for refused in (
            lambda: ops.delta_rule(*x.values(), feature_map=phi.to("cuda"), backend="native"),
            lambda: ops.Decoding("delta", None, True, False, backend="native").step(None, *x.values()),
            lambda: ops.recur(z, k, v, x["beta"], backend="native"),
        ):
            with pytest.raises(NotImplementedError, match=message):
                refused()
        assert ops.delta_rule(*x.values(), feature_map=phi.to("cuda"))[0].isfinite().all()
        assert not ops.Decoding("delta", None, True, False).serves(x["k"])
    assert not unit_rows.TO_LENGTH_ONE.serves(z) and unit_rows.to_length_one(z, 1e-6).isfinite().all()
    assert [record.levelname for record in caplog.records if "failed their check" in record.message] == ["WARNING"]


@pytest.mark.needs("native", "cuda")
def test_auto_takes_chunked_from_the_length_of_the_table_on(monkeypatch):
    """For this rule and on CUDA alone; a backend that is named serves all the same."""
    calls = []
    monkeypatch.setattr(backends.chunked, "run", lambda call, run=backends.chunked.run: calls.append(1) or run(call))
    monkeypatch.setitem(native_cuda.CHUNKED_FROM, "delta", 20)

    def chunked(rule, length, backend="auto", device="cuda"):
        calls.clear()
        x, phi = make(rule, length, length, dtype=HALF)
        given = (y.to(device, HALF if device == "cuda" else torch.float32) for y in x.values())
        getattr(ops, f"{rule}_rule")(*given, feature_map=phi.to(device), backend=backend)
        return bool(calls)

    assert [chunked("delta", n) for n in (19, 20, 21)] == [False, True, True]
    assert not chunked("sum", 21) and not chunked("delta", 21, "native") and not chunked("delta", 21, device="cpu")


@pytest.mark.parametrize(
    "value, reason",
    [("0", "switched off by FWP_CUDA=0"), ("no", "not loaded: FWP_CUDA=no, expected 0 or 1"), ("1", "not built: ")],
)
def test_the_switch(value, reason, monkeypatch, tmp_path):
    """It is there before the library is: nothing of CUDA is loaded, so neither rules nor row functions can use it."""
    monkeypatch.setenv("FWP_CUDA", value)
    assert _extension.load(tmp_path).reasons["cuda"].startswith(reason)
