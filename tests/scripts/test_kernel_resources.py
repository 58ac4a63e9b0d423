"""Tests the table of the CUDA kernels with a fake nvcc: it is complete, and stale tables and new spills are errors."""

import itertools
import re
import subprocess
import sys

import pytest
import torch

from fwp_fairseq.feature_maps import build_feature_map
from scripts import kernel_resources
from tests.cuda import kernels

MANGLED = "_ZN3fwp3gpu14forward_kernelINS0_4HalfELi64ELNS_4RuleE1ELNS0_4KindE2EEEvNS0_4CallE"
REPORT = f"""\
ptxas info    : Compiling entry function '{MANGLED}' for 'sm_80'
ptxas info    : Function properties for {MANGLED}
    {{stack}} bytes stack frame, {{spilled}} bytes spill stores, {{spilled}} bytes spill loads
ptxas info    : Used {{registers}} registers, used 1 barriers, 928 bytes cmem[0]
ptxas info    : Compiling entry function '{MANGLED}' for 'sm_90'
ptxas info    : Function properties for {MANGLED}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 99 registers, used 1 barriers
ptxas info    : Function properties for _ZN3fwp3gpu4HeadINS0_4HalfELi64ELNS0_4KindE2ELi64ELi1EE7restageEi
    0 bytes stack frame, {{spilled}} bytes spill stores, 0 bytes spill loads
"""
NAME = "forward_kernel<Half, 64, delta, state>"


def test_table_has_every_source_and_no_other():
    rows = re.findall(r"^\| (\w+) \| `.+?` \|", generated(kernel_resources.PAGE), re.M)
    assert set(rows) == {path.stem for path in (kernel_resources.CUDA / "kernels" / "instances").glob("*.cu")}


def test_report_of_the_assembler():
    found = kernel_resources.kernels_of("forward_half_delta", REPORT.format(stack=8, spilled=8, registers=120))
    # On the second device, the function that the kernel calls spills the registers.
    assert found == [("forward_half_delta", NAME, {"sm_80": (120, 16), "sm_90": (99, 8)})]


def test_sources_that_are_not_assembled_have_rows_without_numbers():
    found = kernel_resources.kernels_of(
        "fold_single", ".entry _ZN3fwp3gpu11fold_kernelINS0_6SingleEEEvNS0_10DecodeCallE"
    )
    assert found == [("fold_single", "fold_kernel<Single>", {})]
    assert "| fold_single | `fold_kernel<Single>` | 128 | 1.0 kB | – | – | – | – |" in kernel_resources.table(
        found, {"fold_kernel<Single>": (128, 1024)}, "nvcc"
    )


def generated(page) -> str:
    text = page.read_text()
    return text[text.index(kernel_resources.BEGIN) : text.index(kernel_resources.END)]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Makes a project of one source, a page without a table, and an nvcc that prints the contents of report.txt."""
    for folder in ("csrc/cuda/kernels/instances", "docs", "cuda/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "csrc/cuda/kernels/instances/forward_half_delta.cu").write_text('#include "../a.cuh"\n')
    (tmp_path / "csrc/cuda/kernels/a.cuh").write_text("int a;  // one\n")
    page = tmp_path / "docs" / "kernels.md"
    page.write_text(f"before\n{kernel_resources.BEGIN}{kernel_resources.END}\nafter\n")
    nvcc = tmp_path / "cuda/bin/nvcc"
    version = "Cuda compilation tools, release 13.0, V13.0.88"
    nvcc.write_text(
        f"#!/bin/sh\n[ $1 = --version ] && echo {version} && exit\ncat {tmp_path}/report.txt; echo >>{tmp_path}/calls\n"
    )
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(kernel_resources, "ROOT", tmp_path)
    monkeypatch.setattr(kernel_resources, "CUDA", tmp_path / "csrc" / "cuda")
    monkeypatch.setattr(kernel_resources, "BUILD", tmp_path / "build")
    monkeypatch.setattr(kernel_resources, "PAGE", page)
    monkeypatch.setattr(kernel_resources, "SPILLS", {})
    monkeypatch.setattr(kernel_resources, "sizes", lambda: {NAME: (128, 2048)})

    def run(*arguments, spilled=0, registers=120):
        (tmp_path / "report.txt").write_text(REPORT.format(stack=0, spilled=spilled, registers=registers))
        monkeypatch.setattr(sys, "argv", ["kernel_resources.py", *arguments])
        return kernel_resources.main()

    run.page, run.folder = page, tmp_path
    return run


def change_source(project):
    (project.folder / "csrc/cuda/kernels/a.cuh").write_text("int b;\n")


def test_table_is_written_and_then_accepted(project):
    assert project() == 0
    assert f"| forward_half_delta | `{NAME}` | 128 | 2.0 kB | 120 | 0 | 99 | 0 |" in generated(project.page)
    assert project.page.read_text().startswith("before\n") and project.page.read_text().endswith("\nafter\n")
    assert project("--check") == 0


def test_check_refuses_other_numbers_and_changes_nothing(project, capsys):
    project()
    before = project.page.read_text()
    change_source(project)
    assert project("--check", registers=121) == 1
    assert (
        "does not agree with the compiler's reports" in capsys.readouterr().err and project.page.read_text() == before
    )


def test_numbers_of_another_compiler_are_not_compared(project, capsys):
    project()
    project.page.write_text(project.page.read_text().replace("13.0.88", "12.9.41"))
    change_source(project)
    assert project("--check", registers=121) == 0
    assert "by another compiler" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--check"]])
def test_spilling_fails_unless_it_is_expected(project, arguments, capsys, monkeypatch):
    assert project(*arguments, spilled=4) == 1
    assert f"{NAME} for sm_80: 8 bytes spilled, expected at most 0" in capsys.readouterr().err
    monkeypatch.setattr(kernel_resources, "SPILLS", {NAME: 8})
    assert project() == 0


def test_only_what_has_changed_is_compiled_again(project):
    def calls():
        return len((project.folder / "calls").read_text())

    project()
    project()
    (project.folder / "csrc/cuda/kernels/a.cuh").write_text("int a;  // another comment\n")
    project()
    assert calls() == 1
    change_source(project)
    project()
    assert calls() == 2


def test_a_kernel_of_unknown_size_is_named(project, monkeypatch):
    monkeypatch.setattr(kernel_resources, "sizes", dict)
    with pytest.raises(SystemExit, match=re.escape(f"sizes.cpp does not print {NAME}")):
        project()


@pytest.mark.slow
def test_shared_memory_is_what_the_kernels_ask_for():
    sizes = kernel_resources.sizes()
    for operands, dtype in {"Half": torch.float16, "Single": torch.float32}.items():
        for direction, length in itertools.product(("forward", "backward"), (16, 32, 64, 128)):
            q = torch.empty(1, length, 1, 64, dtype=dtype)
            call = kernels.make_call(
                q, q, q, rule="sum", feature_map=build_feature_map("dpfp", 64, nu=2), causal=True,
                normalize_features=True, normalize_output=False,
            )  # fmt: skip
            size = kernels.bytes_needed(call, backward=direction == "backward", limit=2**30)
            teams = 2 if direction == "backward" and length <= 64 else 1
            assert sizes[f"{direction}_kernel<{operands}, {length}, sum, plain>"] == (2 * length * teams, size)


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_nvcc_is_looked_for_where_torch_looks(variable, project, monkeypatch):
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setenv(variable, str(project.folder / "cuda"))
    assert kernel_resources.find_nvcc() == str(project.folder / "cuda/bin/nvcc")
    monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", str(project.folder / "cuda/bin"))
    assert kernel_resources.find_nvcc() == str(project.folder / "cuda/bin/nvcc")


def test_without_nvcc_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    done = subprocess.run(
        [sys.executable, kernel_resources.__file__, "--check"], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1 and done.stderr.startswith("no nvcc") and "Traceback" not in done.stderr
