"""Files are complete or not there, whatever ends the writer; their mode stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fwp_fairseq import files
from fwp_fairseq.files import replaced, write_atomically

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_replaced_file_keeps_its_mode_and_its_links(tmp_path, mode):
    target, link = tmp_path / "a.md", tmp_path / "link"
    target.write_text("old")
    target.chmod(mode)
    link.symlink_to(target)
    with replaced(link) as file:
        file.write(b"new")
        (unfinished,) = tmp_path.glob(".a.md.*")
        assert unfinished.stat().st_mode & 0o777 == mode, "nobody else may read what is being written"
    assert target.read_text() == "new" and target.stat().st_mode & 0o777 == mode and link.is_symlink()


def test_new_file_has_the_mode_of_any_new_file(tmp_path):
    (tmp_path / "any").touch()
    write_atomically(tmp_path / "new", "text")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "any").stat().st_mode


@pytest.mark.parametrize("failing", ["os.replace", "os.fsync"])
def test_failed_writing_keeps_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing):
    write_atomically(tmp_path / "file", "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(failing, full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "old"


def test_device_or_pipe_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/null"):
        with pytest.raises(OSError, match="expected a regular file"):
            write_atomically(path, "text")
    assert (tmp_path / "pipe").is_fifo() and Path("/dev/null").is_char_device()


def test_no_wait_for_the_disk_is_long(tmp_path, monkeypatch):
    """Nothing interrupts fsync, so it never has much to do."""
    waits, sync = [], os.fsync
    monkeypatch.setattr(files, "SYNC_EVERY", 1000)
    monkeypatch.setattr(os, "fsync", lambda number: (waits.append(os.fstat(number).st_size), sync(number)))
    with replaced(tmp_path / "file") as file:
        for _ in range(10):
            file.write(b"x" * 2**20)
    assert len(waits) == 11 and (tmp_path / "file").stat().st_size == 10 * 2**20


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path):
    with replaced(tmp_path / "file") as first:
        first.write(b"first")
        write_atomically(tmp_path / "file", "second")
        assert (tmp_path / "file").read_text() == "second"
    assert (tmp_path / "file").read_text() == "first" and len(list(tmp_path.iterdir())) == 1


# It hangs where the disk would take long: within a write of torch.save, which makes an error of its own of exceptions.
CHECKPOINT = """
import torch
from fwp_fairseq.cli.checkpoint import save
save({"model": torch.zeros(2**20)}, sys.argv[1])
"""
TEXT = """
files.write_atomically(sys.argv[1], "x" * 2**21)
"""
HANGING = """
import os, sys, time
from fwp_fairseq import files
def hang(number):
    print("hangs", flush=True)
    time.sleep(60)
os.fsync, files.SYNC_EVERY = hang, 1
files.end_on_signals("fwp")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, program", [(signal.SIGINT, CHECKPOINT), (signal.SIGTERM, TEXT), (signal.SIGHUP, TEXT)]
)
def test_signal_ends_a_writer_at_once_and_leaves_nothing(tmp_path, number, program):
    status, error, seconds = stopped(tmp_path / "file", HANGING + program, number)
    assert status == -number and seconds < 10
    assert error.split() == ["fwp:", "stopped", "by", number.name]
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "old"


def test_what_a_killed_writer_left_goes_with_the_next(tmp_path):
    assert stopped(tmp_path / "file", HANGING + TEXT, signal.SIGKILL)[0] == -signal.SIGKILL
    assert len(list(tmp_path.glob(".file.*.tmp"))) == 1 and (tmp_path / "file").read_text() == "old"
    write_atomically(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def stopped(target, program, number):
    """Status, errors, and the seconds that it went on for."""
    target.write_text("old")
    # A shell in the background starts its commands with SIGINT ignored, and nohup with SIGHUP; a terminal does not.
    usual = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program = f"{usual}signal.signal(signal.SIGHUP, signal.SIG_DFL)\n{program}"
    command = [sys.executable, "-c", program, target]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == "hangs\n", process.stderr.read()
        begin = time.monotonic()
        process.send_signal(number)
        error = process.communicate(timeout=60)[1]
    return process.returncode, error, time.monotonic() - begin
