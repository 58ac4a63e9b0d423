"""Builds copies of the project, each with its own FWP_BUILD and compiler."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
NO_KERNELS = "there are no sources"
SCHEMA = '#include <torch/library.h>\nTORCH_LIBRARY(fwp_setup_test, m) { m.def("answer() -> int"); }\n'
KERNEL = (
    "#include <torch/library.h>\nstatic int64_t answer() { return 42; }\n"
    'TORCH_LIBRARY_IMPL(fwp_setup_test, CompositeExplicitAutograd, m) { m.impl("answer", &answer); }\n'
)


@pytest.fixture
def project(tmp_path):
    """A copy that holds what setup.py reads, without kernels."""
    for name in ("setup.py", "pyproject.toml"):
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


def build(project, target, **environment):
    """``setup.py build`` into project/out; its exit status and output, and the record or None."""
    command = [sys.executable, "setup.py", "build", "--build-lib", "out"]
    environment = {**os.environ, "FWP_BUILD": target, **environment}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=300)
    record = project / "out" / "fwp_fairseq" / "_build.json"
    return done.returncode, done.stdout + done.stderr, json.loads(record.read_text()) if record.exists() else None


def broken_compiler(project):
    path = project / "broken-c++"
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && echo broken 1.0 && exit 0\nexit 1\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_auto_without_kernels_builds_nothing_and_says_why(project):
    status, output, record = build(project, "auto", CUDA_HOME="/usr/local/cuda")
    assert status == 0, output
    assert record["built"] == [] and NO_KERNELS in record["reasons"]["cpu"] and NO_KERNELS in record["reasons"]["cuda"]


def test_none(project):
    add_kernels(project)
    status, output, record = build(project, "none")
    assert status == 0, output
    assert (record["target"], record["built"], record["reasons"]) == ("none", [], {})


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_explicit_target_fails_loudly(project, target):
    status, output, record = build(project, target)
    assert status != 0 and record is None
    assert f"FWP_BUILD={target}: cannot build the cpu kernels: {NO_KERNELS}" in output


def test_unknown_target(project):
    status, output, _ = build(project, "fast")
    assert status != 0 and "FWP_BUILD=fast: expected one of auto, none, cpu, cuda" in output


def test_no_torch_while_building(project):
    add_kernels(project)
    (project / "torch.py").write_text("raise ImportError('no torch here')")
    status, output, record = build(project, "auto", PYTHONPATH=str(project))
    assert status == 0, output
    assert "no torch here" in record["reasons"]["cpu"] and "--no-build-isolation" in record["reasons"]["cpu"]
    assert build(project, "cpu", PYTHONPATH=str(project))[0] != 0


def test_cuda_home_is_where_nvcc_says_that_it_lies(project, monkeypatch):
    """On PATH there may be a wrapper, which torch would take for the toolkit's own."""
    add_kernels(project)
    (project / "torch.py").write_text("import os\nraise ImportError(f'CUDA_HOME={os.environ.get(\"CUDA_HOME\")}')")
    folder, toolkit = project / "bin", project / "toolkit"
    folder.mkdir()
    (folder / "nvcc").write_text(f"#!/bin/sh\necho '#$ TOP={toolkit}/bin/..' >&2\n")
    (folder / "nvcc").chmod(0o755)
    given = dict(PYTHONPATH=str(project), PATH=f"{folder}:{os.environ['PATH']}")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    _, _, record = build(project, "auto", **given)
    assert f"CUDA_HOME={toolkit}" in record["reasons"]["cuda"] + record["reasons"]["cpu"]
    _, _, record = build(project, "auto", CUDA_HOME="/chosen", **given)
    assert "CUDA_HOME=/chosen" in record["reasons"]["cuda"] + record["reasons"]["cpu"]


def install_editable(project, target, **environment):
    """As pip does it; its exit status, and what is in the package's folder afterwards: libraries and record."""
    code = "from setuptools.build_meta import build_editable; build_editable('wheels')"
    (project / "wheels").mkdir(exist_ok=True)
    environment = {**os.environ, "FWP_BUILD": target, **environment}
    done = subprocess.run([sys.executable, "-c", code], cwd=project, env=environment, capture_output=True, timeout=300)
    folder = project / "fwp_fairseq"
    libraries = {path.name: path.read_bytes() for path in folder.glob("*.so")}
    return done.returncode, libraries, json.loads((folder / "_build.json").read_text())


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


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="needs a C++ compiler")
def test_kernels_are_replaced_by_those_that_are_built(installed):
    status, libraries, record = install_editable(installed, "cpu")
    assert status == 0 and record["built"] == ["cpu"] and record["kept"] == {}
    assert libraries.keys() == {"_cpu.abi3.so"} and libraries["_cpu.abi3.so"] != b"cpu"


def test_no_compiler(project):
    add_kernels(project)
    _, _, record = build(project, "auto", CXX="no-such-compiler")
    assert "no-such-compiler is not on PATH" in record["reasons"]["cpu"]


def test_failing_compiler_is_recorded_by_auto_and_stops_cpu(project):
    add_kernels(project)
    compiler = broken_compiler(project)
    status, output, record = build(project, "auto", CXX=compiler)
    assert status == 0, output
    assert record["built"] == [] and "compiling failed" in record["reasons"]["cpu"]
    assert record["compiler"] == "broken 1.0"
    assert build(project, "cpu", CXX=compiler)[0] != 0


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch could build CUDA kernels")
def test_cuda_needs_a_cuda_torch(project):
    (project / "csrc" / "cuda").mkdir()
    (project / "csrc" / "cuda" / "launch.cpp").write_text("")
    add_kernels(project)
    status, output, _ = build(project, "cuda")
    assert status != 0 and "cannot build the cuda kernels" in output and "without CUDA" in output


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="needs a C++ compiler")
def test_library_is_built_without_python_symbols_and_loads(project):
    add_kernels(project)
    status, output, record = build(project, "cpu")
    assert status == 0, output
    assert record["built"] == ["cpu"] and record["torch"] == torch.__version__ and record["compiler"]
    folder = project / "out" / "fwp_fairseq"
    library = folder / "_cpu.abi3.so"
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
    ).stdout
    assert "torch" in symbols and not re.search(r"\b_?Py[A-Z]\w+", symbols)
    code = (
        "import sys, torch; from pathlib import Path; from fwp_fairseq import _extension\n"
        "status = _extension.status(); assert status.cpu and not status.cuda and status.reason is None, status\n"
        "assert torch.ops.fwp_setup_test.answer() == 42"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder.parent, check=True)


def test_package_data_and_entry_point(project):
    done = subprocess.run(
        [sys.executable, "setup.py", "egg_info"], cwd=project, capture_output=True, text=True, check=True
    )
    assert done.returncode == 0
    info = project / "fwp_fairseq.egg-info"
    assert "fwp = fwp_fairseq.cli:main" in (info / "entry_points.txt").read_text()
    unconditional = (info / "requires.txt").read_text().partition("[")[0].split()
    assert unconditional == ["torch", "numpy"], "no bound: pip must never replace the torch that is there"
    assert "[log]\ntensorboardX\nwandb\n" in (info / "requires.txt").read_text()


def test_source_distribution_has_every_kernel_source(project):
    shutil.copy(ROOT / "MANIFEST.in", project)
    shutil.copytree(ROOT / "csrc", project / "csrc", dirs_exist_ok=True)
    command = [sys.executable, "setup.py", "-q", "sdist", "--formats", "tar"]
    subprocess.run(command, cwd=project, env={**os.environ, "FWP_BUILD": "none"}, capture_output=True, check=True)
    (archive,) = (project / "dist").iterdir()
    with tarfile.open(archive) as file:
        packed = {name.partition("/")[2] for name in file.getnames()}
    sources = {path.relative_to(project).as_posix() for path in (project / "csrc").rglob("*") if path.is_file()}
    assert sources <= packed, f"missing: {sorted(sources - packed)}"
