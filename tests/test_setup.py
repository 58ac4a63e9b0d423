"""Builds copies of the project, each with its own FWP_BUILD and compiler."""

import email
import fcntl
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from packaging.specifiers import SpecifierSet

from tests.pages import ROOT

pytestmark = pytest.mark.slow

needs_compiler = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="needs a C++ compiler")
NO_KERNELS = "there are no sources"
# Only one of the two reads torch's headers, which takes the compiler longest.
SCHEMA = """
#include <torch/library.h>
int answer();
TORCH_LIBRARY(fwp_setup_test, m) {
  m.def("answer() -> int", []() -> int64_t { return answer(); });
}
"""
KERNEL = "int answer() { return 42; }\n"


@pytest.fixture
def project(tmp_path, forked_python):
    """A copy that holds what setup.py reads, without kernels, and the program ``python`` that runs it."""
    (tmp_path / "python").symlink_to(forked_python.program)
    for name in ("setup.py", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "csrc").mkdir()
    (tmp_path / "fwp_fairseq").mkdir()
    for name in ("__init__.py", "_extension.py"):
        shutil.copy(ROOT / "fwp_fairseq" / name, tmp_path / "fwp_fairseq")
    return tmp_path


def add_kernels(project):
    (project / "csrc" / "cpu").mkdir()
    (project / "csrc" / "fast_weights.cpp").write_text(SCHEMA)
    (project / "csrc" / "cpu" / "answer.cpp").write_text(KERNEL)


def run(project, code, target, environment):
    """Runs a script with FWP_BUILD; its exit status and output."""
    # A stand-in for torch needs a process that does not have torch yet.
    python = sys.executable if (project / "torch.py").exists() else project / "python"
    done = subprocess.run(
        [python, "-c", code],
        cwd=project,
        env={**os.environ, "FWP_BUILD": target, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def build(project, target, prelude="", **environment):
    """``setup.py build`` into project/out; its exit status and output, and the record or None."""
    code = "import runpy, sys; sys.argv = 'setup.py build --build-lib out'.split(); runpy.run_path('setup.py')"
    status, output = run(project, f"{prelude}\n{code}", target, environment)
    record = project / "out" / "fwp_fairseq" / "_build.json"
    return status, output, json.loads(record.read_text()) if record.exists() else None


def broken_compiler(project):
    path = project / "broken-c++"
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && echo broken 1.0 && exit 0\nexit 1\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_auto_without_kernels_builds_nothing_and_says_why(project):
    status, output, record = build(project, "auto", CUDA_HOME="/usr/local/cuda")
    assert status == 0, output
    assert record["built"] == [] and NO_KERNELS in record["reasons"]["cpu"] and NO_KERNELS in record["reasons"]["cuda"]


def test_two_builds_in_one_folder_take_turns(project):
    with open(project / "setup.py") as other, ThreadPoolExecutor(1) as pool:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = pool.submit(build, project, "auto")
        with pytest.raises(TimeoutError):
            waiting.result(timeout=3)
        assert not (project / "out/fwp_fairseq/_build.json").exists()
        fcntl.flock(other, fcntl.LOCK_UN)
        status, output, record = waiting.result(timeout=100)
    assert status == 0 and record["built"] == []
    assert f"waiting for another build in {project}" in output


def test_no_torch_while_building(project):
    add_kernels(project)
    (project / "torch.py").write_text("raise ImportError('no torch here')")
    status, output, record = build(project, "auto", PYTHONPATH=str(project))
    assert status == 0, output
    assert "no torch here" in record["reasons"]["cpu"] and "--no-build-isolation" in record["reasons"]["cpu"]
    assert build(project, "cpu", PYTHONPATH=str(project))[0] != 0


def install_editable(project, target, **environment):
    """As pip does it; its exit status, and what is in the package's folder afterwards: libraries and record."""
    code = "from setuptools.build_meta import build_editable; build_editable('wheels')"
    (project / "wheels").mkdir(exist_ok=True)
    status, _ = run(project, code, target, environment)
    folder = project / "fwp_fairseq"
    libraries = {path.name: path.read_bytes() for path in folder.glob("*.so")}
    return status, libraries, json.loads((folder / "_build.json").read_text())


@pytest.fixture
def installed(project):
    """With kernels of an earlier build, for torch 1.0."""
    add_kernels(project)
    record = {"target": "auto", "built": ["cpu", "cuda"], "kept": {}, "reasons": {}, "torch": "1.0"}
    record["sha256"] = {"cpu": "of cpu", "cuda": "of cuda"}
    (project / "fwp_fairseq" / "_build.json").write_text(json.dumps(record))
    for part in ("cpu", "cuda"):
        (project / "fwp_fairseq" / f"_{part}.abi3.so").write_bytes(part.encode())
    return project


EARLIER = {"_cpu.abi3.so": b"cpu", "_cuda.abi3.so": b"cuda"}


def test_isolated_build_keeps_the_kernels_that_it_cannot_replace(installed):
    """As ``pip install -e .`` without --no-build-isolation: pip shows nothing of it, and twice is no worse."""
    pyproject = "[build-system]\nrequires = []\nbuild-backend = 'setuptools.build_meta'\n"
    (installed / "pyproject.toml").write_text(pyproject)
    (installed / "torch.py").write_text("raise ImportError('no torch here')")
    for _ in range(2):
        status, libraries, record = install_editable(installed, "auto", PYTHONPATH=str(installed))
        assert status == 0 and libraries == EARLIER
        assert record["built"] == [] and record["kept"] == {"cpu": "1.0", "cuda": "1.0"} and record["torch"] is None
        assert record["sha256"] == {"cpu": "of cpu", "cuda": "of cuda"}
        assert "--no-build-isolation" in record["reasons"]["cpu"]


def test_kernels_outlive_a_failed_build_and_go_when_the_target_is_without_them(installed):
    before = (installed / "fwp_fairseq" / "_build.json").read_text()
    compiler = broken_compiler(installed)
    status, libraries, record = install_editable(installed, "cpu", CXX=compiler)
    assert status != 0 and libraries == EARLIER and record == json.loads(before)
    status, libraries, record = install_editable(installed, "auto", CXX=compiler)
    assert status == 0 and libraries == EARLIER and record["kept"]["cpu"] == "1.0"
    status, libraries, record = install_editable(installed, "none")
    assert status == 0 and libraries == {} and record["kept"] == {}


def test_failing_compiler_is_recorded_by_auto_and_stops_cpu(project):
    add_kernels(project)
    compiler = broken_compiler(project)
    status, output, record = build(project, "auto", CXX=compiler, MAX_JOBS="0")  # no limit, for ninja
    assert status == 0, output
    assert record["built"] == [] and "compiling failed" in record["reasons"]["cpu"]
    assert record["compiler"] == "broken 1.0"
    assert build(project, "cpu", CXX=compiler)[0] != 0


def test_a_compiler_that_is_absent_is_named_with_the_build_that_needs_none(project):
    add_kernels(project)
    status, output, _ = build(project, "cpu", CXX="no-such-c++")
    assert status == 1 and "no C++ compiler: no-such-c++, expected a program on PATH" in output
    assert output.endswith("; FWP_BUILD=none installs without them\n")


@needs_compiler
def test_a_changed_header_is_compiled_without_ninja(project):
    (project / "csrc" / "cpu").mkdir()
    (project / "csrc" / "cpu" / "answer.cpp").write_text('#include "answer.h"\nint answer() { return ANSWER; }\n')
    without = "import torch.utils.cpp_extension as torchs\ntorchs.is_ninja_available = lambda: False"
    digests = []
    for number in (42, 43):
        (project / "csrc" / "cpu" / "answer.h").write_text(f"#define ANSWER {number}\n")
        status, output, record = build(project, "cpu", without)
        assert status == 0 and record["built"] == ["cpu"], output
        digests.append(record["sha256"]["cpu"])
    assert digests[0] != digests[1]


@needs_compiler
def test_library_replaces_an_earlier_one_has_no_python_symbols_and_loads(installed):
    status, libraries, record = install_editable(installed, "cpu")
    assert status == 0 and record["built"] == ["cpu"] and record["kept"] == {}
    assert libraries.keys() == {"_cpu.abi3.so"} and libraries["_cpu.abi3.so"] != b"cpu"
    assert record["torch"] == torch.__version__ and record["compiler"]
    library = installed / "fwp_fairseq" / "_cpu.abi3.so"
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
    ).stdout
    assert "torch" in symbols and not re.search(r"\b_?Py[A-Z]\w+", symbols)
    # It has none of our operators, as a library of other sources would.
    code = (
        "import torch; from fwp_fairseq import _extension; status = _extension.status()\n"
        "assert not status.cpu and 'built from older sources' in status.reasons['cpu'], status\n"
        f"torch.ops.load_library({str(library)!r}); assert torch.ops.fwp_setup_test.answer() == 42"
    )
    subprocess.run([sys.executable, "-c", code], cwd=installed, check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, forked_python):
    """The distribution's archive of sources, and from that alone the wheel: {name: content} of each."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "tree").mkdir()
    built_here = shutil.ignore_patterns("__pycache__", "*.so", "_build.json")
    for path in ROOT.iterdir():
        if path.name in ("csrc", "fwp_fairseq"):
            shutil.copytree(path, folder / "tree" / path.name, ignore=built_here)
        elif path.is_file():
            shutil.copy(path, folder / "tree")

    def built(function: str, tree: Path) -> Path:
        (tree / "python").symlink_to(forked_python.program)
        code = f"from setuptools import build_meta; build_meta.{function}({str(folder)!r})"
        status, output = run(tree, code, "none", {})
        assert status == 0, output
        (found,) = folder.glob("*.tar.gz" if function == "build_sdist" else "*.whl")
        return found

    with tarfile.open(built("build_sdist", folder / "tree")) as file:
        file.extractall(folder / "packed", filter="data")
    (tree,) = (folder / "packed").iterdir()
    packed = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    with zipfile.ZipFile(built("build_wheel", tree)) as file:
        return packed, {name: file.read(name).decode() for name in file.namelist() if not name.endswith(".so")}


def test_wheel_says_what_it_is(wheel):
    _, files = wheel
    (info,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
    metadata = email.message_from_string(files[f"{info}/METADATA"])
    assert metadata["Author"] == "the fwp_fairseq authors" and metadata["License"] == "MIT"
    assert files[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_text()
    assert SpecifierSet(metadata["Requires-Python"]) == SpecifierSet(">=3.10,<3.14")
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text().strip()
    assert "fwp = fwp_fairseq.cli:main" in files[f"{info}/entry_points.txt"]
    assert "fwp_fairseq/py.typed" in files
    required = metadata.get_all("Requires-Dist")
    # No bound: pip must never replace the torch that is there.
    assert [text for text in required if "extra" not in text] == ["torch", "numpy"]
    assert 'pytest-xdist; extra == "dev"' in required and 'wandb; extra == "log"' in required


def test_the_wheel_trains_and_translates_outside_the_repository(wheel, tmp_path):
    """On a few lines, with nothing of the checkout: the commands that `fwp train` prints are those of the wheel."""
    for name, text in wheel[1].items():
        if name.startswith("fwp_fairseq/"):
            (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "site" / name).write_text(text, encoding="utf-8")
    (tmp_path / "texts").mkdir()
    for part in ("train", "valid", "test"):
        for language in ("en", "de"):
            lines = "".join(f"{language} {n} {n * n}\n" for n in range(5 if part == "test" else 40))
            (tmp_path / "texts" / f"{part}.{language}").write_text(lines)
    flags = ("--texts", "texts", "--source", "en", "--target", "de", "--out", "out", "--vocabulary", "60", "--cpu")
    done = subprocess.run(
        [sys.executable, "-m", "fwp_fairseq", "train", *flags, "--max-update", "2"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"--user-dir {tmp_path / 'site/fwp_fairseq'} " in done.stdout
    assert str(ROOT / "fwp_fairseq") not in done.stdout
    assert len((tmp_path / "out/translations.de").read_text().splitlines()) == 5
    assert not [line for line in done.stderr.splitlines() if "DEBUG" in line or "tensorboardX" in line]


def test_source_distribution_has_what_a_build_needs(wheel):
    packed, _ = wheel
    wanted = {path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*") if path.is_file()}
    wanted |= {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "pyproject.toml", "setup.py"}
    assert wanted <= packed, f"missing: {sorted(wanted - packed)}"


def test_version_is_everywhere_the_same():
    version = re.search(r'^__version__ = "(.+)"$', (ROOT / "fwp_fairseq/__init__.py").read_text(), re.M)[1]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
