"""The environment of fairseq's tools: how many threads, and which of a user's variables win."""

import pytest

from fwp_fairseq.cli import processes

KEPT = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


@pytest.mark.parametrize("jobs, threads", [(1, "8"), (4, "4"), (40, "1")])
def test_threads_and_memory_of_a_machine_of_16_cores(monkeypatch, jobs, threads):
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", *KEPT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(processes, "cores", lambda: 16)
    found = processes.environment(jobs)
    assert found["OMP_NUM_THREADS"] == threads and found["GOMP_SPINCOUNT"]
    assert all(int(found[name]) > 2**31 for name in KEPT)  # larger than any tensor of these models


@pytest.mark.parametrize("quota, cores", [("400000 100000", 4), ("50000 100000", 1), ("max 100000", 16)])
def test_a_container_has_fewer_cores(monkeypatch, quota, cores):
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: range(16))
    monkeypatch.setattr(processes.Path, "read_text", lambda _: quota)
    assert processes.cores() == cores


def test_variables_that_are_set_win(monkeypatch):
    given = {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "passive", **dict.fromkeys(KEPT, "1")}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    found = processes.environment(2)
    assert {name: found[name] for name in given} == given and "GOMP_SPINCOUNT" not in found
