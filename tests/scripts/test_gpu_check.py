"""scripts/gpu_check.sh with stand-ins for Python, nvcc and compute-sanitizer; its timeouts with a test that hangs."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "scripts/gpu_check.sh"
PARTS = ("build", "check", "test", "memcheck", "racecheck", "synccheck", "benchmark", "models")
COMMIT = "0123456789" * 4


class StandIns:
    """Stand-ins for the programs that the script calls, on a machine of 16 processors.

    They note their arguments. They fail if the arguments contain ``fails``, and sleep if they contain ``sleeps``.
    """

    def __init__(self, folder: Path, root: Path = ROOT):
        self.root, self.calls, self.bin, self.cuda = root, folder / "calls", folder / "bin", folder / "cuda"
        for made in (self.bin, self.cuda / "bin"):
            made.mkdir(parents=True)
        self.environment = {
            "PATH": f"{self.bin}:{self.cuda / 'bin'}:{os.environ['PATH']}",
            "FWP_DATA": str(folder),
            "CUDA_HOME": "nowhere",
        }
        self.put("nproc", "echo ${OMP_NUM_THREADS:-16}")
        self.put("nvcc", "echo --split-compile", folder=self.cuda / "bin")
        for name in ("python", "compute-sanitizer"):
            self.put(
                name,
                f'echo "{name} blocking=$CUDA_LAUNCH_BLOCKING $*" >> {self.calls}',
                'case "$*" in *"$SLEEPS"*) exec sleep 600 ;; *"$FAILS"*) echo "is wrong"; exit 1 ;; esac',
            )

    def put(self, name: str, *lines: str, folder: Path | None = None) -> None:
        path = (folder or self.bin) / name
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)

    def command(self, *arguments, fails="no call", sleeps="no call", **variables: str):
        """Returns the command to run and its environment variables."""
        variables = {**self.environment, "PYTHON": "python", "FAILS": fails, "SLEEPS": sleeps, **variables}
        return [self.root / SCRIPT, *arguments], {**os.environ, **variables}

    def check(self, *arguments, before: tuple[str, ...] = (), **options: str):
        command, variables = self.command(*arguments, **options)
        command = [*before, *command]
        return subprocess.run(command, env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    @property
    def noted(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def programs(self) -> list[str]:
        """What was begun, in order."""
        found = [
            re.search(r"setup.py|-m benchmarks\.\w+|-m fwp_fairseq check|--tool \w+ .*-m pytest|-m pytest", line)
            for line in self.noted
        ]
        return [re.sub("-m |--tool |(?<!fwp_fairseq) .*", "", one[0]) for one in found if one]


@pytest.fixture
def stand(tmp_path):
    return StandIns(tmp_path)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_begins_with_the_build(stand, part):
    result = stand.check(part)
    assert (result.returncode, result.stderr) == (0, "")
    assert re.search(rf"^=== {part}: passed after \d+ s$", result.stdout.splitlines()[-1])
    expected = {"build": [], "check": ["fwp_fairseq check"], "test": ["pytest"], "benchmark": ["benchmarks.attention"]}
    expected["models"] = ["benchmarks.training", "benchmarks.decoding"]
    assert stand.programs() == ["setup.py", *expected.get(part, [part])]
    checked = [line for line in stand.noted if "-m pytest" in line]
    assert all("blocking=1" in line and "faulthandler_exit_on_timeout=true" in line for line in checked)
    assert all("blocking= " in line for line in stand.noted if "blocking=" in line and line not in checked)


def test_the_first_run_is_every_part_in_order():
    page = (ROOT / "csrc/cuda/README.md").read_text(encoding="utf-8")
    assert tuple(re.findall(rf"^{SCRIPT} --record DIR (\w+)$", page, re.M)) == PARTS


def test_a_failed_build_ends_the_call(stand):
    result = stand.check("test", fails="setup.py")
    assert (result.returncode, result.stderr) == (1, "gpu_check.sh: test: the build failed\n")
    assert stand.programs() == ["setup.py"]


@pytest.mark.parametrize("part, wrong", [("check", "fwp_fairseq check"), ("test", "-m pytest"),
                                         ("racecheck", "-m pytest"), ("models", "training")])  # fmt: skip
def test_what_fails_fails_the_part(stand, part, wrong):
    result = stand.check(part, fails=wrong)
    assert result.returncode == 1 and "is wrong" in result.stdout
    assert re.fullmatch(rf"gpu_check.sh: {part}: failed after \d+ s\n", result.stderr)
    assert part != "models" or stand.programs()[-1] == "benchmarks.decoding"  # which is timed all the same


@pytest.mark.slow
def test_the_few_tests_under_a_sanitizer_are_there(stand, forked_python):
    """Some of each direction, precision, rule and kind of decoding; a test that is renamed would be left out."""
    assert stand.check("racecheck").returncode == 0
    few = stand.noted[-1].split(" -k ")[1].split(" -m needs")[0]
    options = ["-q", "--co", "-p", "no:cacheprovider", "-m", "needs", "tests/cuda", "-k", few]
    run = subprocess.run([forked_python.program, "-m", "pytest", *options], cwd=ROOT, capture_output=True, text=True)
    found = re.findall(r"tests/cuda/(\w+).py::(\w+)\[(.*)\]$", run.stdout, re.M)
    assert {name for _, name, _ in found} == {
        "test_long", "test_cross_attention", "test_pads_write_nothing", "test_maps_and_normalizers", "test_widths",
        "test_maps_and_normalizers_through_two_folds",
    }  # fmt: skip
    assert {file for file, name, _ in found if name == "test_widths"} == {"test_decode_kernels", "test_kernels"}
    for wanted in ("delta", "gated", "dpfp", "favor"):
        assert any(wanted in parameters for *_, parameters in found), wanted
    assert 10 < len(found) < 80


def test_a_sanitizer_that_cannot_attach_has_not_passed(stand):
    result = stand.check("synccheck", fails="torch.ones")
    assert result.returncode == 1 and "cannot attach to this device" in result.stderr
    assert stand.programs() == ["setup.py"]


def test_a_part_ends_in_time(stand):
    begin = time.monotonic()  # the stand-in sleeps for ten minutes
    result = stand.check("--time-limit", "3", "test", sleeps="-m pytest")
    assert time.monotonic() - begin < 60
    assert (result.returncode, result.stderr) == (1, "gpu_check.sh: test: ended at --time-limit 3\n")


def test_ending_the_script_ends_what_it_began(stand, tmp_path):
    command, variables = stand.command("--record", tmp_path / "out", "test", sleeps="-m pytest")
    run = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)
    while "-m pytest" not in " ".join(stand.noted):
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
    "arguments, named",
    [
        (["tests"], "tests"),
        (["--record"], "--record needs a value"),
        (["--time-limit", "0", "test"], "--time-limit 0"),
        (["--time-limit", "1m", "test"], "--time-limit 1m"),
        (["test", "memcheck"], "test and memcheck"),
        ([], "expected a part"),
    ],
)
def test_arguments_are_refused(stand, arguments, named):
    result = stand.check(*arguments)
    assert result.returncode == 2 and named in result.stderr and stand.noted == []


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu(stand, forked_python):
    result = stand.check("test", PYTHON=str(forked_python.program))
    assert result.returncode == 1 and result.stderr.startswith("gpu_check.sh: torch")
    assert "CUDA" in result.stderr and "Traceback" not in result.stderr


# A library call that does not give the interpreter back, as one that waits for a GPU: no handler in Python is called.
HANGS = """
import ctypes, pytest
@pytest.mark.needs("nothing")
@pytest.mark.parametrize("name", ["hangs", "passes"])
def test_kernel(name):
    if name == "hangs":
        ctypes.PyDLL(None).sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("fails, named", [("no call", "crashed while running 'test_hangs.py::test_kernel[hangs]'"),
                                          ("import xdist", "test_hangs.py::test_kernel[hangs] ")])  # fmt: skip
def test_a_test_that_hangs_is_named_and_ended(stand, tmp_path, fails, named):
    """By the options with which the script calls pytest, but for the seconds."""
    stand.check("test", fails=fails)
    options = stand.noted[-1].split("-m pytest ")[1].replace("=120", "=2").replace("-n 8", "-n 1")
    (tmp_path / "test_hangs.py").write_text(HANGS)
    options = options.replace("tests/cuda", "test_hangs.py").split()
    begin = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=tmp_path, capture_output=True, text=True, timeout=50
    )
    assert run.returncode != 0 and time.monotonic() - begin < 40
    assert "Timeout (0:00:02)!" in run.stderr and named in run.stdout
    assert fails != "no call" or "1 failed, 1 passed" in run.stdout


# Makes the torch of this machine say that it has a GPU.
PRETENDS = """
import importlib.abc, sys
class Torch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            module.version.cuda = "13.0"
            module.cuda.is_available = lambda: True
            module.cuda.get_device_capability = lambda: (9, 0)
            module.cuda.get_device_name = lambda *_: "stand-in"
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Torch())
"""
# In place of a benchmark: uses a carried package, and appends a record.
BENCHMARK = """
import sys, carried
from pathlib import Path
from scripts.common import records
found = {"environment": {name: records.environment()[name] for name in ("commit", "dirty")}, "carried": carried.NAME}
records.append(Path(sys.argv[sys.argv.index("--record") + 1]) / "measured.jsonl", found)
"""


COMPILES = "  *setup.py*) echo {} > fwp_fairseq/_build.json; echo compiled > fwp_fairseq/_cuda.abi3.so ;;"


def test_a_library_is_compiled_once_for_the_same_sources(tmp_path):
    root, out = tmp_path / "carried", tmp_path / "out"
    for folder in ("scripts", "csrc", "fwp_fairseq", ".gpu"):
        (root / folder).mkdir(parents=True)
    for name in (SCRIPT, "setup.py"):
        shutil.copy(ROOT / name, root / name)
    (root / "csrc/kernel.h").write_text("one")
    stand = StandIns(tmp_path / "stand-ins", root)
    stand.put("python", f'echo "python $*" >> {stand.calls}', 'case "$*" in', COMPILES, "esac")
    assert stand.check("--record", out, "test").returncode == 0
    (compiled,) = out.glob("library-*.tgz")
    with tarfile.open(compiled) as archive:
        assert archive.getnames() == ["fwp_fairseq/_build.json", "fwp_fairseq/_cuda.abi3.so"]
    (root / "fwp_fairseq/_cuda.abi3.so").unlink()
    shutil.copy(compiled, root / ".gpu")
    assert stand.check("test").returncode == 0
    assert (root / "fwp_fairseq/_cuda.abi3.so").read_text() == "compiled\n"
    (root / "csrc/kernel.h").write_text("another")
    assert stand.check("test").returncode == 0
    assert stand.programs() == ["setup.py", "pytest", "pytest", "setup.py", "pytest"]


@pytest.mark.slow
def test_a_bare_machine(tmp_path):
    """From what is carried to one: the tracked files without .git, and .gpu; and, where that can be had, no network."""
    root, out = tmp_path / "carried", tmp_path / "out"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if files.returncode:
        pytest.skip("needs the repository, to know which files it tracks")
    for name in filter(None, files.stdout.split("\0")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    (root / ".gpu/wheels").mkdir(parents=True)
    with zipfile.ZipFile(root / ".gpu/wheels/carried-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried.py", "NAME = 'from a wheel'\n")
        wheel.writestr("carried-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n")
        wheel.writestr("carried-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("carried-1.0.dist-info/RECORD", "")
    stand = StandIns(tmp_path / "stand-ins", root)
    (tmp_path / "pretends").mkdir()
    (tmp_path / "pretends/sitecustomize.py").write_text(PRETENDS)
    (tmp_path / "benchmark.py").write_text(BENCHMARK)
    stand.put(
        "python",
        f'echo "python blocking=$CUDA_LAUNCH_BLOCKING $*" >> {stand.calls}',
        'case "$*" in',
        COMPILES,
        f'  "-m benchmarks."*) exec {sys.executable} {tmp_path}/benchmark.py "$@" ;;',
        '  "-m pytest"*) ;;',
        f'  *) exec {sys.executable} "$@" ;;',
        "esac",
    )
    offline = ("unshare", "--map-root-user", "--net")
    allowed = shutil.which("unshare") and subprocess.run([*offline, "true"], capture_output=True).returncode == 0
    bare = {"PYTHONPATH": str(tmp_path / "pretends"), "PIP_INDEX_URL": "nowhere"}
    bare |= {"before": offline if allowed else (), "FWP_COMMIT": COMMIT}
    for part in ("test", "benchmark"):
        result = stand.check("--record", out, part, **bare)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "stand-in, torch " in result.stdout and f"=== {part}: passed" in result.stdout.splitlines()[-1]
        assert (out / f"{part}.log").read_text() == result.stdout
    assert stand.programs() == ["setup.py", "pytest", "setup.py", "benchmarks.attention"]
    expected = {"environment": {"commit": COMMIT, "dirty": False}, "carried": "from a wheel"}
    assert [json.loads(line) for line in (out / "measured.jsonl").open()] == [expected]
    # Without a commit nothing is compiled or measured.
    before = stand.programs()
    result = stand.check("--record", out, "benchmark", **bare | {"FWP_COMMIT": ""})
    assert result.returncode == 1 and "set FWP_COMMIT to its commit" in result.stdout and stand.programs() == before
