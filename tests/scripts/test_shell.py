"""The scripts as commands: syntax, help, and refusals that must come before anything is installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
PREPARE = "scripts/reproduce/wmt14_bleu_vs_d_dot/prepare.sh"
SCRIPTS = [
    "scripts/environment.sh",
    "scripts/gpu_check.sh",
    "scripts/quickstart.sh",
    "scripts/test.sh",
    PREPARE,
    ".ci/run",
]


def call(*command, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def bare(tmp_path):
    """The scripts in a folder without .venv."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_gpu_check_says_that_there_is_no_gpu():
    result = call("scripts/gpu_check.sh", PYTHON=sys.executable)
    assert result.returncode == 1 and result.stderr.startswith("gpu_check.sh: torch")
    assert "CUDA" in result.stderr and "Traceback" not in result.stderr


@pytest.fixture
def interpreter(tmp_path):
    """A Python that notes its arguments and fails at those that hold $FAILS."""
    found = tmp_path / "python"
    found.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\ncase "$*" in *"$FAILS"*) exit 1 ;; esac\n')
    found.chmod(0o755)
    return found


def programs(interpreter: Path) -> list[str]:
    return re.findall(r"-m (benchmarks\.\w+|pytest)", (interpreter.parent / "calls").read_text())


def test_gpu_check_times_after_its_checks(interpreter, tmp_path):
    (tmp_path / "wmt10k").mkdir()
    variables = {"PYTHON": str(interpreter), "FWP_DATA": str(tmp_path), "FAILS": "nothing"}
    result = call("scripts/gpu_check.sh", "--only", "test,benchmark,training,decoding", **variables)
    assert (result.returncode, result.stderr) == (0, "")
    assert programs(interpreter) == ["pytest", "benchmarks.attention", "benchmarks.training", "benchmarks.decoding"]
    result = call("scripts/gpu_check.sh", "--only", "decoding", **{**variables, "FWP_DATA": "nowhere"})
    assert result.returncode == 0 and "nowhere/wmt10k is missing: not run" in result.stdout


def test_gpu_check_times_nothing_after_a_failed_check(interpreter, tmp_path):
    variables = {"PYTHON": str(interpreter), "FWP_DATA": str(tmp_path), "FAILS": "pytest"}
    result = call("scripts/gpu_check.sh", "--only", "test,benchmark,training", **variables)
    assert (result.returncode, result.stderr) == (1, "failed: test\n")
    assert "benchmark not timed: test failed" in result.stdout and "training not timed" in result.stdout
    assert programs(interpreter) == ["pytest"]


@pytest.mark.parametrize("arguments", [["--only", "tests"], ["--only"], ["--fast"]])
def test_gpu_check_refuses_unknown_arguments(arguments):
    result = call("scripts/gpu_check.sh", *arguments)
    assert result.returncode == 2 and arguments[-1] in result.stderr


def test_corpus_help():
    result = call("python3", "scripts/data/multi30k.py", "--help")
    assert result.returncode == 0 and "FWP_DATA" in result.stdout


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["--smok"], "--smok"),
        (["--seed", "x"], "--seed"),
        (["--record", "--smoke"], "--record and --smoke"),
        (["--name", "../x"], "--name ../x"),
        (["--name", "data"], "--name data"),
        (["--", "--lr", "1"], "--name"),
    ],
)
def test_wrong_arguments_are_refused_before_installing(arguments, problem, bare):
    result = call(bare / "scripts/quickstart.sh", *arguments)
    assert result.returncode == 2 and problem in result.stderr
    assert not (bare / ".venv").exists()


def test_unusable_python_is_named(bare):
    result = call(bare / "scripts/environment.sh", PYTHON="false")
    assert result.returncode == 1
    assert "expected 3.10, 3.11 or 3.12, found: false (does not run)" in result.stderr
    assert not (bare / ".venv").exists()


def test_python_of_another_version_is_named(bare, tmp_path):
    old = tmp_path / "old-python"
    old.write_text("#!/bin/sh\necho 'Python 3.9'\n")
    old.chmod(0o755)
    result = call(bare / "scripts/environment.sh", PYTHON=str(old))
    assert result.returncode == 1 and f"found: {old} (Python 3.9)" in result.stderr


def test_unknown_argument_of_the_environment(bare):
    result = call(bare / "scripts/environment.sh", "--clean")
    assert result.returncode == 1 and "unknown argument: --clean" in result.stderr


def test_environment_pins_the_fairseq_of_the_extra():
    pinned = re.search(r"^fairseq_wanted=(\S+)$", (ROOT / "scripts/environment.sh").read_text(), re.M)[1]
    assert f'"{pinned}"' in (ROOT / "setup.py").read_text()
