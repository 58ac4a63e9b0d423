#!/usr/bin/env python3
"""Compiles the CUDA kernels (nvcc, no GPU) and keeps the table of what they use in docs/kernels.md.

Sources of half operands that are not `general` become machine code for each device and must not spill registers, see
SPILLS. The others become unoptimised PTX, to show that they compile: their machine code takes minutes.
--check changes nothing and fails when the table differs; numbers are compared where the compiler is the table's.
"""

import argparse
import hashlib
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
CUDA = ROOT / "csrc" / "cuda"
BUILD = ROOT / "build" / "kernels"  # the assembler's reports: only what has changed is compiled again
PAGE = ROOT / "docs" / "kernels.md"
BEGIN, END = "<!-- kernel resources: scripts/kernel_resources.py -->\n", "<!-- /kernel resources -->"

DEVICES = ("sm_80", "sm_90")
KINDS = ("plain", "favor", "state", "general")  # of instances, as in csrc/cuda/kernels/limits.h
# Kernels that are known to spill, and the most bytes that they may store and load for it.
SPILLS = {
    "backward_kernel<Half, 64, true, state>": 1620,
    "backward_kernel<Half, 64, false, state>": 48,
    "backward_kernel<Half, 128, true, favor>": 16,
    "decode_kernel<Half, 1>": 80,
    "decode_kernel<Half, 2>": 272,
}


class Kernel(NamedTuple):
    """What the assembler reports of a kernel: registers and bytes spilled for each device, where it was asked."""

    source: str
    name: str
    used: dict[str, tuple[int, int]]


def assembled(source: str) -> bool:
    return "half" in source and "general" not in source


def find_nvcc() -> str | None:
    """Where torch's builds, and so setup.py's, look: CUDA_HOME or CUDA_PATH, PATH, /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return shutil.which("nvcc", path=Path(home, "bin"))
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def plain(name: str) -> str:
    """Compiler's name as a reader of the sources knows it: ``forward_kernel<Half, 64, true, state>``."""
    known = re.sub(r"^void |fwp::gpu::|\([^()]*\)$", "", run("c++filt", name).strip())
    return re.sub(r"\(Kind\)(\d)", lambda number: KINDS[int(number[1])], known)


def kernels_of(source: str, report: str) -> list[Kernel]:
    """From the assembler's report, or PTX. The functions that a kernel calls, listed behind it, spill for it."""
    found = {name: Kernel(source, plain(name), {}) for name in re.findall(r"\.entry (\w+)", report)}
    for part in re.split(r"(?=Compiling entry function)", report)[1:]:
        name, device = re.match(r"Compiling entry function '(\w+)' for '(\w+)'", part).groups()
        registers = int(re.search(r"Used (\d+) registers", part)[1])
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
        found.setdefault(name, Kernel(source, plain(name), {})).used[device] = registers, spilled
    return list(found.values())


def text_of(path: Path) -> str:
    """A source with the project's headers that it includes; without comments, line breaks and indentation."""
    text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
    included = [text_of(path.parent / name) for name in re.findall(r'#include "(.+)"', text)]
    return " ".join(text.split() + included)


def compile_one(nvcc: str, version: str, source: Path, assemble: bool) -> list[Kernel]:
    """PTX for the oldest device, since the sources hold nothing that depends on it; from that machine code for each."""
    oldest = DEVICES[0].replace("sm", "compute")
    output = [f"-gencode=arch={oldest},code={device}" for device in DEVICES] + ["-fatbin", "-Xptxas", "-v"]
    options = ("-std=c++17", "-O3", *output) if assemble else ("-std=c++17", f"-arch={oldest}", "-ptx", "-Xcicc", "-O0")
    state = hashlib.sha256(repr((version, options, text_of(source))).encode()).hexdigest()[:16]
    known = BUILD / f"{source.stem}-{state}.txt"
    if not known.exists():
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, "kernels")
            report = run(nvcc, *options, "-I", CUDA, source, "-o", made)
            if not assemble:
                report = "\n".join(re.findall(r"\.entry \w+", made.read_text()))
        for stale in BUILD.glob(f"{source.stem}-{'?' * 16}.txt"):
            stale.unlink()
        known.write_text(report)
        print(f"compiled {source.relative_to(ROOT)}: {time.monotonic() - begin:.0f} s", flush=True)
    return kernels_of(source.stem, known.read_text())


def sizes() -> dict[str, tuple[int, int]]:
    """Kernel to threads and bytes of shared memory of a block; see sizes.cpp."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "sizes")
        run(*os.environ.get("CXX", "g++").split(), "-std=c++17", CUDA / "shim" / "sizes.cpp", "-o", program)
        lines = [line.split("\t") for line in run(program).splitlines()]
    return {name: (int(threads), int(size)) for name, threads, size in lines}


def table(kernels: list[Kernel], sizes: dict[str, tuple[int, int]], compiler: str) -> str:
    def order(kernel: Kernel) -> list:
        return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", f"{kernel.source} {kernel.name}")]

    head = ["source", "kernel", "threads", "shared memory"]
    head += [f"{device}: {what}" for device in DEVICES for what in ("registers", "spilled bytes")]
    lines = [head, ["---"] * len(head)]
    for kernel in sorted(kernels, key=order):
        threads, size = sizes[kernel.name]
        used = [number for device in DEVICES for number in kernel.used.get(device, ("–", "–"))]
        lines.append([kernel.source, f"`{kernel.name}`", threads, f"{size / 1024:.1f} kB", *used])
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + f"\n\nCompiler: {compiler}.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail when the table would change")
    parser.add_argument("--all", action="store_true", help="assemble every source and only print the table")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="compilers at a time")
    parser.add_argument("--print-nvcc", action="store_true", help="only print the compiler that would be used")
    arguments = parser.parse_args()

    nvcc = find_nvcc()
    if nvcc is None:
        parser.exit(1, "no nvcc: neither in CUDA_HOME or CUDA_PATH nor on PATH nor in /usr/local/cuda/bin\n")
    if arguments.print_nvcc:
        print(nvcc)
        return 0
    version = re.search(r"V([\d.]+)", run(nvcc, "--version"))[1]
    known, compiler = sizes(), f"nvcc {version}"
    BUILD.mkdir(parents=True, exist_ok=True)

    def work(source: Path) -> list[Kernel]:
        return compile_one(nvcc, version, source, arguments.all or assembled(source.stem))

    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = pool.map(work, sorted((CUDA / "kernels" / "instances").glob("*.cu")))
        kernels = [kernel for kernels in found for kernel in kernels]
    if unknown := {kernel.name for kernel in kernels} - known.keys():
        sys.exit(f"csrc/cuda/shim/sizes.cpp does not print {', '.join(sorted(unknown))}")
    if arguments.all:
        print(table(kernels, known, compiler))
        return 0

    spilling = 0
    for kernel in kernels:
        for device, (_, spilled) in kernel.used.items():
            allowed = SPILLS.get(kernel.name, 0)
            if spilled > allowed:
                spilling += 1
                numbers = f"{spilled} bytes spilled, expected at most {allowed}"
                print(f"{kernel.source}.cu: {kernel.name} for {device}: {numbers}", file=sys.stderr)
    before = PAGE.read_text(encoding="utf-8")
    start, end = before.index(BEGIN) + len(BEGIN), before.index(END)
    after = before[:start] + table(kernels, known, compiler) + before[end:]
    name, other = PAGE.relative_to(ROOT), f"Compiler: {compiler}." not in before
    stale = arguments.check and after != before and not other
    if not arguments.check:
        PAGE.write_text(after, encoding="utf-8")
    elif other:
        print(f"the table in {name} is of another compiler than {compiler}: numbers not compared")
    elif stale:
        print(f"{name} is not what the compiler reports: run scripts/kernel_resources.py", file=sys.stderr)
    print(f"{len(kernels)} kernels by {compiler}, {sum(bool(kernel.used) for kernel in kernels)} of them assembled")
    return 1 if spilling or stale else 0


if __name__ == "__main__":
    sys.exit(main())
