import os
import subprocess
import sys

import pytest

from fwp_fairseq import __version__
from fwp_fairseq.cli import COMMANDS


def test_overview_names_every_command(fwp):
    for arguments in ((), ("--help",)):
        result = fwp(*arguments)
        assert result.status == 0
        assert all(name in result.out for name in COMMANDS)


def test_version(fwp):
    assert fwp("--version").out == f"{__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_refuses_an_unknown_flag_in_one_line(fwp, refused, name):
    result = fwp(name, "--help")
    assert result.status == 0 and f"usage: fwp {name}" in result.out
    refused(2, name, "--no-such-flag")


def test_unknown_command(fwp):
    result = fwp("no-such-command")
    assert result.status == 2
    assert "no-such-command" in result.err and "d-dot" in result.err and result.err.count("\n") == 1


def test_closed_pipe_is_no_error():
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-m", "fwp_fairseq"], stdout=write, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(write)
    assert done.stderr == ""


def test_width_conversion_imports_no_fairseq():
    code = (
        "import sys; from fwp_fairseq.cli import main; status = main(['d-dot', '--nu', '2']);"
        "sys.exit(status or any(name.split('.')[0] == 'fairseq' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
