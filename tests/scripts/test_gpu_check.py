"""scripts/gpu_check.sh with stand-ins for Python and compute-sanitizer."""

import os
import re
import shlex
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from benchmarks.cases import CASES
from tests.pages import ROOT, block, commands

SCRIPT = "scripts/gpu_check.sh"
PARTS = (
    *("build", "check", "test", "memcheck", "racecheck", "synccheck"),
    *("benchmark", "compare", "peers", "models", "decoding", "profile"),
)


EARLIER = ["7e205be", "93f58bf"]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout


class StandIns:
    """Stand-ins for the programs that the script calls, on a machine of 16 processors.

    They note their arguments. They fail if the arguments contain ``fails``, and sleep if they contain ``sleeps``.
    """

    def __init__(self, folder: Path):
        self.calls, self.bin = folder / "calls", folder / "bin"
        self.bin.mkdir()
        self.environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "FWP_DATA": str(folder)}
        self.put("nproc", "echo ${OMP_NUM_THREADS:-16}")
        for name in ("python", "compute-sanitizer"):
            self.put(
                name,
                f'echo "{name} blocking=$CUDA_LAUNCH_BLOCKING $*" >> {self.calls}',
                'case "$*" in *"$SLEEPS"*) exec sleep 600 ;; *"$FAILS"*) echo "is wrong"; exit 1 ;; esac',
            )

    def put(self, name: str, *lines: str) -> None:
        path = self.bin / name
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)

    def check(self, *arguments, fails="no call", sleeps="no call", **variables: str):
        """Runs the script."""
        variables = {**self.environment, "PYTHON": "python", "FAILS": fails, "SLEEPS": sleeps, **variables}
        command = [ROOT / SCRIPT, *arguments]
        return subprocess.run(command, env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    @property
    def noted(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def stand(tmp_path):
    return StandIns(tmp_path)


def test_the_first_run_is_every_part_in_order():
    assert commands(block("csrc/cuda/README.md", "scripts/gpu_check.sh --record DIR build")) == [
        f"{SCRIPT} --record DIR {part}" for part in PARTS
    ]


def test_libraries_are_compiled_without_a_gpu(stand, tmp_path):
    """The commands of the page; the stand-in for Python compiles nothing, so that the archives hold the sources."""
    lines = commands(block("csrc/cuda/README.md", "scripts/gpu_check.sh --record .gpu --for 9.0 build"))
    assert [line.split()[-1] for line in lines] == ["build", "earlier"]
    if not all(git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") for commit in EARLIER):
        pytest.skip("this clone has not the earlier commits")
    before = git("worktree", "list")
    result = stand.check(*shlex.split(lines[1].replace(".gpu", str(tmp_path / "record")))[1:])
    assert result.returncode == 0, result.stderr
    names = [archive.name for archive in sorted((tmp_path / "record").glob("*.tgz"))]
    assert [name[8:15] for name in names] == EARLIER
    for name in names:
        with tarfile.open(tmp_path / "record" / name) as archive:
            assert f"{name[8:48]}/fwp_fairseq/ops/fast_weights.py" in archive.getnames()
    assert [call.split()[-4:] for call in stand.noted if "setup.py" in call] == [
        ["setup.py", "--quiet", "build_ext", "--inplace"]
    ] * 2
    assert any(call.endswith(" 9.0") for call in stand.noted)  # what finds the device is told not to look for one
    assert git("worktree", "list") == before


def test_the_shapes_that_are_compared():
    """Sentences and long texts with 256 features, under both rules, forward alone and with the backward."""
    script = (ROOT / SCRIPT).read_text()
    (shapes,) = re.findall(r"^shapes='(.*)'$", script, re.M)
    found = {(case.rows, case.length, case.d_dot) for case in CASES["cuda"] if re.search(shapes, case.name)}
    assert found == {(1024, 32, 256), (1024, 64, 256), (1024, 128, 256), (64, 1024, 256), (64, 4096, 256)}
    assert sum(bool(re.search(shapes, case.name)) for case in CASES["cuda"]) == 5 * 2 * 2


@pytest.mark.parametrize("part, wrong", [("test", "-m pytest"), ("models", "training")])
def test_what_fails_fails_the_part(stand, part, wrong):
    result = stand.check(part, fails=wrong)
    assert result.returncode == 1 and "is wrong" in result.stdout
    assert re.fullmatch(rf"gpu_check.sh: {part}: failed after \d+ s\n", result.stderr)
    assert part != "models" or "benchmarks.decoding" in stand.noted[-1]  # which is timed all the same


@pytest.mark.slow
def test_the_few_tests_under_a_sanitizer_are_there(stand, forked_python):
    """Some of each direction, precision, rule and kind of decoding; a test that is renamed would be left out."""
    assert stand.check("racecheck").returncode == 0
    few = stand.noted[-1].split(" -k ")[1].split(" -m needs")[0]
    options = ["-q", "--co", "-p", "no:cacheprovider", "-m", "needs", "tests/cuda", "-k", few]
    run = subprocess.run([forked_python.program, "-m", "pytest", *options], cwd=ROOT, capture_output=True, text=True)
    found = re.findall(r"tests/cuda/(\w+).py::(\w+)\[(.*)\]$", run.stdout, re.M)
    assert {name for _, name, _ in found} == {
        "test_long", "test_many_heads", "test_cross_attention", "test_pads_write_nothing", "test_maps_and_normalizers",
        "test_widths",
        "test_maps_and_normalizers_through_two_folds",
    }  # fmt: skip
    assert {file for file, name, _ in found if name == "test_widths"} == {"test_decode_kernels", "test_kernels"}
    for wanted in ("delta", "gated", "dpfp", "favor"):
        assert any(wanted in parameters for *_, parameters in found), wanted
    assert 10 < len(found) < 80


def test_a_part_ends_in_time(stand):
    begin = time.monotonic()  # the stand-in sleeps for ten minutes
    result = stand.check("--time-limit", "3", "test", sleeps="-m pytest")
    assert time.monotonic() - begin < 60
    assert (result.returncode, result.stderr) == (1, "gpu_check.sh: test: ended at --time-limit 3\n")


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["tests"], "tests"),
        (["--time-limit", "0", "test"], "--time-limit 0"),
        (["test", "memcheck"], "test and memcheck"),
        ([], "expected a part"),
        (["--for", "9", "build"], "--for 9: expected a compute capability"),
        (["--for", "9.0", "test"], "--for: expected the part build or earlier, found test"),
        (["earlier"], "expected --record DIR"),
    ],
)
def test_arguments_are_refused(stand, arguments, named):
    result = stand.check(*arguments)
    assert result.returncode == 2 and named in result.stderr and stand.noted == []
