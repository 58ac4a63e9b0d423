"""Tests the shell scripts: syntax, help, and errors that must be reported before anything is installed."""

import os
import re
import shutil
import subprocess

import pytest

from tests.pages import ROOT

SCRIPTS = ["scripts/environment.sh", "scripts/gpu_check.sh", "scripts/quickstart.sh", "scripts/test.sh", ".ci/run"]


def call(*command, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A copy of the scripts and the package, from which they import, in a folder without .venv. Tests leave it so."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ("scripts", "fwp_fairseq"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return folder


@pytest.mark.parametrize("script", SCRIPTS)
def test_syntax_and_executable(script):
    assert call("bash", "-n", script).stderr == ""
    assert os.access(ROOT / script, os.X_OK)


@pytest.mark.parametrize("script", SCRIPTS[:-1])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_needs_no_environment(script, flag, bare):
    result = call(bare / script, flag, PYTHON="")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: {script}")
    assert not (bare / ".venv").exists()


def test_texts_of_ones_own_go_to_fwp_train(tmp_path):
    """Once there is an environment, and from the folder of the caller, to which the paths refer."""
    environment, fwp = tmp_path / "scripts/environment.sh", tmp_path / ".venv/bin/fwp"
    for program, text in ((environment, "#!/bin/sh\necho set up\n"), (fwp, '#!/bin/sh\npwd\nprintf "%s|" "$@"\n')):
        program.parent.mkdir(parents=True)
        program.write_text(text)
        program.chmod(0o755)
    shutil.copy(ROOT / "scripts/quickstart.sh", tmp_path / "scripts")
    found = call(tmp_path / "scripts/quickstart.sh", "--out", "x", "--texts", "tests", "--", "--lr", "1")
    assert found.stdout == f"set up\n{ROOT}\ntrain|--out|x|--texts|tests|--|--lr|1|"
    for words, said in (
        (("--texts", "my texts"), " my texts"),
        (("--texts=my texts",), " my texts"),
        (("--texts",), ""),
    ):
        absent = call(tmp_path / "scripts/quickstart.sh", *words)
        assert (absent.returncode, absent.stdout) == (2, "")
        assert absent.stderr == f"scripts/quickstart.sh: error: --texts{said}: expected a folder\n"


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["--smok"], "--smok"),
        (["--seed", "1"], "--seed"),
        (["--", "--lr", "1"], "--lr"),
    ],
)
def test_wrong_arguments_are_refused_before_installing(arguments, problem, bare):
    result = call(bare / "scripts/quickstart.sh", *arguments)
    assert result.returncode == 2 and problem in result.stderr
    assert not (bare / ".venv").exists()


def test_unusable_python_is_named(bare):
    result = call(bare / "scripts/environment.sh", PYTHON="false")
    assert result.returncode == 1
    assert "expected 3.10 to 3.13, found: false (does not run)" in result.stderr
    assert not (bare / ".venv").exists()


def test_environment_pins_the_fairseq_of_the_extra():
    pinned = re.search(r"^fairseq_wanted=(\S+)$", (ROOT / "scripts/environment.sh").read_text(), re.M)[1]
    assert f'"{pinned}"' in (ROOT / "setup.py").read_text()
