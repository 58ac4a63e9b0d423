"""Files are complete or not there, whatever ends the writer; their mode stays."""

import os
from pathlib import Path

import pytest

from fwp_fairseq import files
from fwp_fairseq.files import locked, reason, replaced, write_atomically


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
    (tmp_path / "any").touch()
    write_atomically(tmp_path / "new", "text")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "any").stat().st_mode


@pytest.mark.parametrize("failing", ["os.replace", "os.fsync"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_failed_writing_keeps_the_old_file_and_nothing_else(tmp_path, monkeypatch, failing, error):
    write_atomically(tmp_path / "file", "old")

    def fail(*_):
        raise error

    monkeypatch.setattr(failing, fail)
    with pytest.raises(type(error)):
        write_atomically(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "old"


def test_device_or_pipe_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/null"):
        with pytest.raises(OSError, match="expected a regular file"):
            write_atomically(path, "text")
    with open(tmp_path / "log", "a") as log:
        os.symlink(f"/dev/fd/{log.fileno()}", tmp_path / "link")
        for path in (f"/dev/fd/{log.fileno()}", f"/proc/self/fd/{log.fileno()}", tmp_path / "link"):
            with pytest.raises(OSError, match="expected a regular file"):
                write_atomically(path, "text")
    with pytest.raises(FileNotFoundError, match=r"none/x.md'$"):
        write_atomically(tmp_path / "none/x.md", "text")
    assert (tmp_path / "pipe").is_fifo() and Path("/dev/null").is_char_device()


def test_reasons_name_the_file_and_what_pytorch_hides():
    assert reason(FileNotFoundError(2, "No such file or directory", "a.pt")) == "a.pt: No such file or directory"
    hiding = RuntimeError("unexpected position\nand a trace")
    assert reason(hiding) == "unexpected position"
    hiding.__context__ = OSError(27, "File too large")
    assert reason(hiding) == "File too large"


def test_a_folder_that_another_user_has_locked_can_be_locked(tmp_path, monkeypatch):
    """Only its owner may write to the file of the lock."""

    def opened(path, mode="r"):
        if "w" in mode:
            raise PermissionError(13, "Permission denied", path)
        return path.open(mode)

    with locked(tmp_path, None):
        pass
    monkeypatch.setattr(files, "open", opened, raising=False)

    def busy():
        raise InterruptedError

    with locked(tmp_path, busy), pytest.raises(InterruptedError), locked(tmp_path, busy):
        raise AssertionError("locked twice")
