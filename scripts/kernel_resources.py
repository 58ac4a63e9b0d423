#!/usr/bin/env python3
"""Compiles the CUDA kernels and writes the table of their resources, csrc/cuda/resources.md. Needs nvcc, but no GPU.

Every source is compiled to machine code for each device, and no kernel may spill more than SPILLED bytes a thread.
With --check nothing is written.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
INSTANCES = ROOT / "csrc" / "cuda" / "kernels" / "instances"
PAGE = ROOT / "csrc" / "cuda" / "resources.md"
HEAD = "# Registers and spilled bytes a thread of every kernel\n\nWritten by `scripts/kernel_resources.py`.\n\n"
DEVICES = ("sm_80", "sm_90", "sm_120")
SPILLED = 320  # bytes a thread, stored and loaded: little more than today's most


class Kernel(NamedTuple):
    """What the assembler says of a kernel on a device."""

    name: str
    registers: int
    spilled: int


def find_nvcc() -> str | None:
    """Looks for nvcc where torch and so setup.py look: in CUDA_HOME or CUDA_PATH, on PATH, in /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return shutil.which("nvcc", path=Path(home, "bin"))
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def kernels_of(report: str) -> list[Kernel]:
    """The kernels of an assembler's report. What functions that a kernel calls spill counts as the kernel's."""
    found = []
    for part in re.split(r"(?=Compiling entry function)", report)[1:]:
        mangled = re.match(r"Compiling entry function '(\w+)'", part)[1]
        name = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout.strip()
        registers = int(re.search(r"Used (\d+) registers", part)[1])
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
        found.append(Kernel(re.sub(r"^void |fwp::(gpu::)?|\([^()]*\)$", "", name), registers, spilled))
    return found


def compiled(nvcc: str, source: Path, device: str) -> tuple[list[Kernel], float]:
    """The kernels of a source on a device, and how many seconds it took to compile."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, "-std=c++17", "-O3", "--expt-relaxed-constexpr", "-Xptxas", "-v", f"-arch={device}", "-cubin"]
        done = subprocess.run([*command, source, "-o", Path(folder, "kernels")], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{source}\n{done.stdout}{done.stderr}")
    return kernels_of(done.stdout + done.stderr), time.monotonic() - begin


def table(found: dict[tuple[str, str], tuple[list[Kernel], float]], compiler: str) -> str:
    """In Markdown: a line for each kernel; the seconds of each device below it."""
    head = ["source", "kernel", *(f"{device}: {what}" for device in DEVICES for what in ("registers", "spilled bytes"))]
    lines = [head, ["---"] * len(head)]
    for source in sorted({source for source, _ in found}):
        columns = [sorted(found[source, device][0]) for device in DEVICES]
        for row in zip(*columns, strict=True):
            lines.append([source, f"`{row[0].name}`", *(n for kernel in row for n in kernel[1:])])
    seconds = ", ".join(
        f"{device} {sum(time for (_, other), (_, time) in found.items() if other == device):.0f}" for device in DEVICES
    )
    rows = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
    return f"{rows}\n\nCompiler: {compiler}. Seconds of a processor for all sources: {seconds}.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="compilers at a time")
    parser.add_argument("--print-nvcc", action="store_true", help="only print the compiler that would be used")
    arguments = parser.parse_args()
    nvcc = find_nvcc()
    if nvcc is None:
        parser.exit(1, "no nvcc: it is neither in CUDA_HOME or CUDA_PATH nor on PATH nor in /usr/local/cuda/bin\n")
    if arguments.print_nvcc:
        print(nvcc)
        return 0
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    work = [(source, device) for source in sorted(INSTANCES.glob("*.cu")) for device in DEVICES]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        done = pool.map(lambda one: compiled(nvcc, *one), work)
        found = {(source.stem, device): result for (source, device), result in zip(work, done, strict=True)}
    spilling = [(key, kernel) for key, (kernels, _) in found.items() for kernel in kernels if kernel.spilled > SPILLED]
    for (source, device), kernel in spilling:
        print(
            f"{source}.cu: {kernel.name} for {device} spills {kernel.spilled} bytes, at most {SPILLED}", file=sys.stderr
        )
    made = table(found, f"nvcc {re.search(r'V([0-9.]+)', version)[1]}")
    if arguments.check:
        print(made)
    else:
        PAGE.write_text(HEAD + made, encoding="utf-8")
    return int(bool(spilling))


if __name__ == "__main__":
    sys.exit(main())
