"""Tests the shell scripts: syntax, help, and errors that must be reported before anything is installed."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
PREPARE = "scripts/reproduce/wmt14_bleu_vs_d_dot/prepare.sh"
SCRIPTS = [
    "scripts/environment.sh",
    "scripts/gpu_check.sh",
    "scripts/python.sh",
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
    """Copies the scripts and the package, from which they import, into a folder without .venv."""
    for name in ("scripts", "fwp_fairseq"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
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


class StandIns:
    """Stand-ins for the programs that gpu_check.sh calls, on a machine of 16 processors.

    They note their arguments. They fail if the arguments contain ``fails``, and sleep if they contain ``sleeps``.
    """

    def __init__(self, folder: Path):
        self.calls = folder / "calls"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (folder / "wmt10k").mkdir()
        self.environment = {"PATH": f"{self.bin}:{os.environ['PATH']}", "FWP_DATA": str(folder)}
        self.put("nproc", "echo ${OMP_NUM_THREADS:-16}")
        for name in ("python", "compute-sanitizer"):
            self.put(
                name,
                f'echo "{name} $*" >> {self.calls}',
                'case "$*" in *"$SLEEPS"*) exec sleep 600 ;; *"$FAILS"*) echo "is wrong"; exit 1 ;; esac',
            )

    def put(self, name: str, *lines: str) -> None:
        (self.bin / name).write_text("\n".join(["#!/bin/sh", *lines, ""]))
        (self.bin / name).chmod(0o755)

    def command(self, *arguments: str, fails="no call", sleeps="no call", **variables: str):
        """Returns the command to run and its environment variables."""
        variables = {**self.environment, "PYTHON": "python", "FAILS": fails, "SLEEPS": sleeps, **variables}
        return [ROOT / "scripts/gpu_check.sh", *arguments], variables

    def check(self, *arguments: str, **options: str):
        command, variables = self.command(*arguments, **options)
        return call(*command, **variables)

    @property
    def noted(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def began(self, program: str) -> int:
        return sum(f"-m {program} " in line for line in self.noted)


@pytest.fixture
def stand(tmp_path):
    return StandIns(tmp_path)


def test_gpu_check_times_after_its_checks(stand):
    result = stand.check()
    assert (result.returncode, result.stderr) == (0, "")
    assert "not run" not in result.stdout
    order = [re.search(r"setup.py|-m benchmarks\.\w+|--tool \w+|-m pytest", line) for line in stand.noted]
    order = [found[0].split()[-1] for found in order if found]
    assert order[:2] == ["setup.py", "pytest"] and {*order[2:4]} == {"memcheck", "racecheck"}
    assert order[4:] == ["benchmarks.attention", "benchmarks.training", "benchmarks.decoding"]


def test_gpu_check_runs_every_test_once(stand):
    """With pytest-xdist in one call; without it, in a process for each file that has tests for a GPU."""
    stand.check("--only", "test")
    (line,) = [line for line in stand.noted if "-m pytest" in line]
    assert line.endswith(" -m needs -n 8 tests/cuda")
    stand.calls.unlink()
    stand.check("--only", "test", fails="import xdist")
    found = [line.partition(" -m needs ")[2] for line in stand.noted if "-m pytest" in line]
    files = {path.name for path in (ROOT / "tests/cuda").glob("test_*.py") if "DEVICES" in path.read_text()}
    assert {Path(name).name for name in found} == files | {"test_glue.py"} and len(found) == len(files) + 1


def test_gpu_check_without_what_whole_models_need(stand):
    result = stand.check("--only", "benchmark,decoding", FWP_DATA="nowhere")
    assert (result.returncode, stand.began("benchmarks.attention")) == (0, 1)
    assert "not run: decoding: nowhere/wmt10k is missing\n" in result.stdout
    result = stand.check("--only", "training", fails="import fairseq")
    assert "not run: training: is wrong\n" in result.stdout
    assert stand.began("benchmarks.decoding") == stand.began("benchmarks.training") == 0


@pytest.mark.parametrize(
    "wrong, failed",
    [("setup.py", "build test"), ("-m pytest", "test sanitize"), ("-n 8", "test"), ("racecheck", "sanitize")],
)
def test_gpu_check_times_nothing_after_a_failed_check(stand, wrong, failed):
    result = stand.check(fails=wrong)
    assert (result.returncode, result.stderr) == (1, f"failed: {failed}\n")
    for part in ("benchmark", "training", "decoding"):
        assert f"not run: {part}: {failed} failed\n" in result.stdout
    assert "-m benchmarks" not in " ".join(stand.noted)
    if wrong == "-n 8":
        assert "is wrong\n" in result.stdout and stand.began("pytest") == 1 + 2
    if wrong == "setup.py":
        assert stand.began("pytest") == 0 and "not run: sanitize: build failed" in result.stdout


@pytest.mark.parametrize("wrong", ["benchmarks.attention", "benchmarks.training"])
def test_gpu_check_goes_on_after_a_benchmark_that_failed(stand, wrong):
    result = stand.check("--only", "benchmark,training,decoding", fails=wrong)
    assert (result.returncode, stand.began("benchmarks.decoding")) == (1, 1)


@pytest.mark.parametrize("part, sleeps", [("test", "-n 8"), ("build", "setup.py")])
def test_gpu_check_ends_in_time_and_times_nothing_then(stand, part, sleeps):
    begin = time.monotonic()  # the stand-in sleeps for ten minutes
    result = stand.check("--time-limit", "6", "--only", f"{part},benchmark", sleeps=sleeps)
    assert time.monotonic() - begin < 120
    assert (result.returncode, result.stderr) == (1, f"failed: {part}\n")
    found = re.search(rf"not run: {part}: ended after (\d+) s\nnot run: benchmark: {part} failed\n", result.stdout)
    assert int(found[1]) < 25
    assert stand.began("benchmarks.attention") == 0


@pytest.fixture
def ending(stand):
    """Replaces ``timeout`` by a stand-in that ends commands containing $ENDED at once."""
    real = shutil.which("timeout")
    stand.put("timeout", f'case "$*" in *"$ENDED"*) exit ${{STATUS:-124}} ;; *) exec {real} "$@" ;; esac')
    return stand


@pytest.mark.parametrize("ended", ["--tool racecheck", "torch.ones"])
@pytest.mark.parametrize("status", ["124", "137"])
def test_a_sanitizer_that_was_ended_has_not_passed(ending, ended, status):
    result = ending.check(ENDED=ended, STATUS=status)
    assert (result.returncode, result.stderr) == (0, "")
    (missing,) = re.findall("^not run: .*", result.stdout, re.M)
    assert re.fullmatch(r"not run: sanitize: ended after \d+ s", missing)
    assert ending.began("benchmarks.attention") == ending.began("benchmarks.decoding") == 1


def test_what_one_tool_finds_counts_though_the_other_was_ended(ending):
    result = ending.check(ENDED="--tool memcheck", fails="--tool racecheck")
    assert (result.returncode, result.stderr) == (1, "failed: sanitize\n")
    assert ending.began("benchmarks.attention") == 0


def test_a_timed_part_that_was_ended_is_named(ending):
    result = ending.check("--only", "benchmark,training", ENDED="benchmarks.attention")
    assert result.returncode == 0 and "not run: benchmark: ended after " in result.stdout
    assert ending.began("benchmarks.training") == 1


def test_gpu_check_begins_nothing_without_time_for_it(stand):
    result = stand.check("--only", "test,sanitize,benchmark", "--time-limit", "35")
    assert result.returncode == 0 and stand.began("pytest") == 1
    for part, least in (("sanitize", 30), ("benchmark", 40)):
        text = rf"^not run: {part}: only (\d+) s of the time limit are left for it, and it needs {least}$"
        assert int(re.search(text, result.stdout, re.M)[1]) < least


def test_parts_share_the_time(stand):
    """Time that a part does not use goes to the next ones. Of each part, half of its least time is kept in reserve."""
    result = stand.check("--only", "sanitize,benchmark,training,decoding", "--time-limit", "9000")
    allowed = dict(re.findall(r"=== (\w+): at most (\d+) s", result.stdout))
    for part, share in {"sanitize": 2 / 9, "benchmark": 2 / 7, "training": 3 / 5, "decoding": 1}.items():
        assert 8900 * share < int(allowed[part]) <= 9000 * share
    for program, part, reserve in (("attention", "benchmark", 20), ("decoding", "decoding", 30)):
        limit = re.search(rf"benchmarks\.{program} .*--time-limit (\d+)", "\n".join(stand.noted))
        assert 0 <= int(allowed[part]) - reserve - int(limit[1]) < 100
    alone = stand.check("--only", "training", FWP_DATA=stand.environment["FWP_DATA"])
    assert int(re.search(r"training: at most (\d+)", alone.stdout)[1]) > 460


def test_ending_gpu_check_ends_what_it_began(stand):
    command, variables = stand.command("--only", "test", sleeps="-m pytest", fails="import xdist")
    run = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)
    while stand.began("pytest") < 4:
        assert run.poll() is None
        time.sleep(0.05)
    run.terminate()
    assert run.wait(60) == 130
    deadline = time.monotonic() + 60
    while sleeping := sleepers(stand):
        assert time.monotonic() < deadline, sleeping
        time.sleep(0.05)


def sleepers(stand: StandIns) -> list[str]:
    """Returns the processes that have the stand-ins' environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"FWP_DATA={stand.environment['FWP_DATA']}".encode() in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:  # the process has ended, or belongs to another user
            continue
    return found


@pytest.mark.parametrize(
    "arguments", [["--only", "tests"], ["--only"], ["--fast"], ["--time-limit", "0"], ["--time-limit", "1m"]]
)
def test_gpu_check_refuses_unknown_arguments(arguments):
    result = call("scripts/gpu_check.sh", *arguments)
    assert result.returncode == 2 and arguments[-1] in result.stderr


def test_tests_run_on_every_processor_and_quick_ones_without_the_slow(bare):
    (bare / "scripts/environment.sh").write_text("#!/bin/sh\n")
    python = bare / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    python.chmod(0o755)
    usual = ["-m", "pytest", "-n", str(len(os.sched_getaffinity(0)) + 1), "--dist", "loadgroup"]
    for arguments, wanted in {("-k", "a b"): ("-k", "a b"), ("--quick", "-x"): ("-m", "not slow", "-x")}.items():
        # OMP_NUM_THREADS must not limit the number of processes, as it would limit what nproc prints.
        found = call(bare / "scripts/test.sh", *arguments, OMP_NUM_THREADS="1")
        assert found.stdout == "|".join([*usual, *wanted, ""])


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
