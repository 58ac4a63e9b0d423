import hashlib
import json
import re
from pathlib import Path

import pytest
import torch

from fwp_fairseq import _extension


def folder_with(tmp_path, record=None, **libraries):
    if isinstance(record, dict):
        record = {"sha256": {part: hashlib.sha256(content).hexdigest() for part, content in libraries.items()}} | record
    if record is not None:
        (tmp_path / "_build.json").write_text(record if isinstance(record, str) else json.dumps(record))
    for part, content in libraries.items():
        (tmp_path / f"_{part}.abi3.so").write_bytes(content)
    return tmp_path


def record(**changes):
    return {"target": "auto", "built": [], "reasons": {}, "torch": torch.__version__, **changes}


def test_damaged_record(tmp_path):
    for text in ("{", "[]", "null", ""):
        assert _extension.build_record(folder_with(tmp_path, text)) is None
        assert not _extension.load(tmp_path).libraries


def test_entries_of_another_kind_are_left_out(tmp_path):
    """A record that was edited or cut leaves the import alive, and no library is loaded that it does not name."""
    for damage in ({"sha256": "x"}, {"torch": 5, "sha256": [1]}, {"kept": 3, "reasons": "y", "target": None}):
        status = _extension.load(folder_with(tmp_path, record(**damage), cpu=b"x"))
        assert not status.libraries and "_cpu.abi3.so" in status.reasons["cpu"]


def test_library_of_older_sources_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(_extension, "OPERATORS", ("fast_weights", "added_since"))
    status = _extension.load(folder_with(tmp_path, record(), cpu=b"old"))
    assert not status.libraries and "older sources, without" in status.reasons["cpu"]


def test_every_operator_is_asked_for():
    sources = (Path(__file__).resolve().parents[1] / "csrc/fast_weights.cpp").read_text()
    assert sorted(_extension.OPERATORS) == sorted(re.findall(r'm\.def\(\s*"(\w+)\(', sources))


def test_unloadable_library_gives_the_reason(tmp_path):
    status = _extension.load(folder_with(tmp_path, record(), cpu=b"not a library", cuda=b""))
    assert not status.libraries
    assert "not loaded" in status.reasons["cpu"] and "_cpu.abi3.so: file too short" in status.reasons["cpu"]
    assert "needs the CPU library" in status.reasons["cuda"]
    assert "\n" not in status.reasons["cpu"]


def test_library_of_another_torch_is_not_even_tried(tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr(torch.ops, "load_library", tried.append)
    status = _extension.load(folder_with(tmp_path, record(torch="1.0.0+cu118"), cpu=b"", cuda=b""))
    assert tried == [] and "torch 1.0.0+cu118" in status.reasons["cpu"] and torch.__version__ in status.reasons["cpu"]


@pytest.mark.needs("native")
def test_broken_cuda_library_leaves_the_cpu(tmp_path, monkeypatch):
    def load(path):
        if path.endswith("_cuda.abi3.so"):
            raise OSError("libcudart.so.12: cannot open\nshared object file")

    monkeypatch.setattr(torch.ops, "load_library", load)
    status = _extension.load(folder_with(tmp_path, record(), cpu=b"", cuda=b""))
    assert status.cpu and not status.cuda
    assert status.libraries == {"cpu": tmp_path / "_cpu.abi3.so"}
    assert status.reasons == {"cuda": "not loaded: libcudart.so.12: cannot open shared object file"}


@pytest.mark.needs("native")
def test_library_that_is_not_the_one_that_was_built_is_not_even_tried(tmp_path, monkeypatch):
    """Python dies of a bus error where a truncated library is loaded."""
    tried = []
    monkeypatch.setattr(torch.ops, "load_library", tried.append)
    found = folder_with(tmp_path, record(), cpu=b"a whole library")
    assert _extension.load(found).cpu and tried.pop() == str(tmp_path / "_cpu.abi3.so")
    (tmp_path / "_cpu.abi3.so").write_bytes(b"a whole")
    reason = _extension.load(found).reasons["cpu"]
    assert "not the file that was built" in reason and str(tmp_path) in reason and "install again" in reason
    for other in (None, record(sha256={}), record(sha256={"cpu": None})):
        (tmp_path / "_build.json").unlink()
        reason = _extension.load(folder_with(tmp_path, other, cpu=b"a whole library")).reasons["cpu"]
        assert "no _build.json beside it names this file" in reason and "install again" in reason
        (tmp_path / "_build.json").touch()
    assert tried == []
