#!/usr/bin/env python3
"""Compiles the CUDA kernels and prints registers and spilled bytes a thread, and machine code, of each. Needs no GPU.

Every source is compiled by nvcc to machine code for each device. The exit status is 1 if a kernel spills more than
SPILLED, or one of those of short sentences more than SHORT_SPILLED, or has more code than CODE.
"""

import argparse
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
INSTANCES = ROOT / "csrc" / "cuda" / "kernels" / "instances"
DEVICES = ("sm_80", "sm_90", "sm_120")
SPILLED, SHORT_SPILLED = 320, 128  # bytes a thread, stored and loaded
CODE = {  # bytes on sm_90; 32,000 are wanted
    "short_forward": 79_000,
    "short_backward": 124_500,
    "rows": 31_500,
    "rows_back": 21_500,
    "keys": 38_000,
    "walk": 103_000,
    "outputs": 103_000,
    "walk_back": 124_000,
    "chunks_back": 190_500,
}


class Kernel(NamedTuple):
    """Registers and spilled bytes of a kernel on a device, as the assembler reports them."""

    name: str
    registers: int
    spilled: int


def find_nvcc() -> str | None:
    """Looks for nvcc where torch and so setup.py look: in CUDA_HOME or CUDA_PATH, on PATH, in /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return shutil.which("nvcc", path=Path(home, "bin"))
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def _readable(mangled: str) -> str:
    """Returns the name of a kernel, without namespaces and the type of its argument."""
    name = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout.strip()
    return re.sub(r"^void |fwp::(gpu::)?|\([^()]*\)$", "", name)


def code_of(cubin: bytes) -> dict[str, int]:
    """Counts the bytes of machine code of each kernel of a file: of the sections .text.NAME of an ELF of 64 bits."""
    table, size, count, names = (
        struct.unpack_from(kind, cubin, at)[0] for kind, at in (("<Q", 40), ("<H", 58), ("<H", 60), ("<H", 62))
    )
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + size * i) for i in range(count)]
    sizes = {}
    for header in headers:
        begin = headers[names][4] + header[0]
        name = cubin[begin : cubin.index(b"\0", begin)].decode()
        if name.startswith(".text."):
            sizes[_readable(name.removeprefix(".text."))] = header[5]
    return sizes


def kernels_of(report: str) -> list[Kernel]:
    """Returns the kernels of an assembler's report. What functions that a kernel calls spill counts as the kernel's."""
    kernels = []
    for part in re.split(r"(?=Compiling entry function)", report)[1:]:
        mangled = re.match(r"Compiling entry function '(\w+)'", part)[1]
        registers = int(re.search(r"Used (\d+) registers", part)[1])
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
        kernels.append(Kernel(_readable(mangled), registers, spilled))
    return kernels


def compiled(nvcc: str, source: Path, device: str) -> list[tuple[Kernel, int]]:
    """Returns the kernels of a source on a device, and the bytes of their machine code."""
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, "-std=c++17", "-O3", "--expt-relaxed-constexpr", "-Xptxas", "-v", f"-arch={device}", "-cubin"]
        cubin = Path(folder, "kernels")
        done = subprocess.run([*command, source, "-o", cubin], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{source}\n{done.stdout}{done.stderr}")
        code = code_of(cubin.read_bytes())
    return [(kernel, code[kernel.name]) for kernel in kernels_of(done.stdout + done.stderr)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="compilers at a time")
    parser.add_argument("--print-nvcc", action="store_true", help="only print the compiler that would be used")
    arguments = parser.parse_args()
    nvcc = find_nvcc()
    if nvcc is None:
        parser.exit(1, "no nvcc: it is neither in CUDA_HOME or CUDA_PATH nor on PATH nor in /usr/local/cuda/bin\n")
    if arguments.print_nvcc:
        print(nvcc)
        return 0
    work = [(source, device) for source in sorted(INSTANCES.glob("*.cu")) for device in DEVICES]
    if not work:
        parser.exit(1, f"{INSTANCES}: no kernels there\n")
    worst = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for (source, device), kernels in zip(work, pool.map(lambda one: compiled(nvcc, *one), work), strict=True):
            for kernel, code in sorted(kernels):
                used = f"{kernel.registers:3} registers, {kernel.spilled:3} bytes spilled, {code:6} of code"
                print(f"{device}: {used}: {source.stem}, {kernel.name}", flush=True)
                limit = SHORT_SPILLED if kernel.name.startswith("short_") else SPILLED
                if kernel.spilled > limit:
                    worst.append(f"{device}: {kernel.name} spills {kernel.spilled} bytes, expected at most {limit}\n")
                most = CODE.get(kernel.name.partition("_kernel")[0], code)
                if device == "sm_90" and code > most:
                    worst.append(f"{device}: {kernel.name} has {code} bytes of code, expected at most {most}\n")
    if worst:
        parser.exit(1, "".join(worst))
    return 0


if __name__ == "__main__":
    sys.exit(main())
