import os
import subprocess
import sys

import pytest

from fwp_fairseq import __version__
from fwp_fairseq.cli import COMMANDS
from fwp_fairseq.cli.commands import called


def test_overview_names_every_command(fwp):
    for arguments in ((), ("--help",)):
        result = fwp(*arguments)
        assert result.status == 0 and all(name in result.out for name in COMMANDS)


def test_version(fwp):
    assert fwp("--version").out == f"{__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_refuses_an_unknown_flag_in_one_line(fwp, refused, name):
    result = fwp(name, "--help")
    assert result.status == 0 and f"usage: fwp {name}" in result.out
    refused(2, name, "--no-such-flag")


def test_unknown_command_and_a_package_that_is_missing(fwp, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert refused(1, "bleu", "--help").strip().endswith("; pip install 'sacrebleu>=2.3'")
    result = fwp("no-such-command")
    assert result.status == 2 and result.err.count("\n") == 1
    assert "no-such-command" in result.err and "d-dot" in result.err


def test_a_path_that_is_wrong_is_named_alone(fwp, tmp_path):
    """And a file that is no checkpoint is not read without torch's protection, as torch advises."""
    absent, text = tmp_path / "absent", tmp_path / "text.md"
    result = fwp("bleu", "--hypotheses", absent, "--references", absent)
    assert (result.status, result.err) == (1, f"fwp bleu: error: {absent}: No such file or directory\n")
    result = fwp("translate", absent)
    assert result.err.startswith(f"fwp translate: error: {absent}: expected a checkpoint, or a folder with one of ")
    text.write_text("# A page\n")
    result = fwp("convert", "--input", text, "--output", tmp_path / "out.pt", "--fwp-decoder", "delta")
    assert (
        result.status == 1 and f"{text}: truncated, or not a checkpoint that can be loaded safely: Unsup" in result.err
    )
    assert "weights_only" not in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize("closed", ["| :", ">&-", "<&- 2>&-"])
def test_closed_pipe_or_stream(closed):
    expected = (1, "fwp: error: standard output is closed\n") if closed == ">&-" else (0, "")
    call = ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m fwp_fairseq {closed}"]
    done = subprocess.run(call, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == expected and bool(done.stdout) == (closed == "<&- 2>&-")


@pytest.mark.parametrize("words", ["", "archs fwp_transformer"])  # what is printed at the end, and before
def test_a_full_disk_is_that_of_standard_output(words):
    with open("/dev/full", "w") as full:
        call = [sys.executable, "-m", "fwp_fairseq", *words.split()]
        done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith(": error: standard output: No space left on device\n"), done.stderr


def test_width_conversion_imports_no_fairseq():
    code = (
        "import sys; from fwp_fairseq.cli import main; status = main(['d-dot', '--nu', '2']);"
        "sys.exit(status or any(name.split('.')[0] == 'fairseq' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_process_in_the_background_can_be_stopped(tmp_path):
    """A shell without job control makes it ignore SIGINT, to which other signals must not be turned then."""
    os.mkfifo(tmp_path / "lines")
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from fwp_fairseq import cli; exit(cli.main())"
    words = [sys.executable, "-c", code, "bleu", "--hypotheses", "lines", "--references", "lines"]
    running = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    with open(tmp_path / "lines", "w"):  # opened once the command reads it
        running.terminate()
        assert (running.communicate(timeout=60), running.returncode) == ((None, "fwp: stopped\n"), 130)


def test_commands_to_copy_begin_with_this_fwp(monkeypatch, tmp_path):
    """Another one on the PATH may be of an environment with another version."""
    mine, theirs = tmp_path / "my env/bin", tmp_path / "theirs"
    for folder in (mine, theirs):
        folder.mkdir(parents=True)
        (folder / "fwp").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(mine / "python"))
    for program in (mine / "fwp", "x/__main__.py"):
        monkeypatch.setattr(sys, "argv", [str(program), "train"])
        for path, name in ((theirs, f"'{mine / 'fwp'}'"), (tmp_path, f"'{mine / 'fwp'}'"), (mine, "fwp")):
            monkeypatch.setenv("PATH", str(path))
            assert called() == name
    (mine / "fwp").unlink()
    assert called() == f"'{sys.executable}' -m fwp_fairseq"
