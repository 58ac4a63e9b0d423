#!/usr/bin/env python3
"""Compiles the CUDA kernels and writes the table of their resources into docs/kernels.md. Needs nvcc, but no GPU.

Sources for half operands, except those named `general`, and those of the recurrences and of functions of rows are
compiled to machine code for each device, and their kernels must not spill more registers than SPILLS allows. The other
sources are compiled to unoptimised PTX only, which shows that they are valid; their machine code would take minutes.
With --check nothing is changed, and the exit status is 1 if the table would change. Numbers are compared only if the
table was made by the same version of the compiler.
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
BUILD = ROOT / "build" / "kernels"  # holds the assembler's reports, so that only changed sources are compiled again
PAGE = ROOT / "docs" / "kernels.md"
BEGIN, END = "<!-- kernel resources: scripts/kernel_resources.py -->\n", "<!-- /kernel resources -->"

DEVICES = ("sm_80", "sm_90")
RULES = re.findall(r"EACH\((\w+)\)", re.search(r"#define FWP_RULES.*", Path(ROOT, "csrc/common/maps.h").read_text())[0])
KINDS = ("plain", "favor", "state", "general")  # the kinds of instances, as in csrc/cuda/kernels/limits.h
# The kernels that are known to spill registers, and how many bytes they may store and load for this.
SPILLS = {
    "decode_kernel<Half, sum>": 80,
    "decode_kernel<Half, delta>": 272,
    "decode_kernel<Half, gated>": 52,
    "decode_kernel<Half, gated_delta>": 212,
}


class Kernel(NamedTuple):
    """A kernel, with the registers that it uses and the bytes that it spills on each device it was assembled for."""

    source: str
    name: str
    used: dict[str, tuple[int, int]]


def is_assembled(source: str) -> bool:
    """Says whether a source is compiled to machine code, rather than to PTX only."""
    return source in ("recurrence", "lstm", "row_functions") or ("half" in source and "general" not in source)


def find_nvcc() -> str | None:
    """Looks for nvcc where torch and so setup.py look: in CUDA_HOME or CUDA_PATH, on PATH, in /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return shutil.which("nvcc", path=Path(home, "bin"))
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def run(*command: object) -> str:
    """Runs a command and returns its output; exits with the output if the command fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def readable_name(name: str) -> str:
    """Turns the compiler's name of a kernel into the sources' name, e.g. ``forward_kernel<Half, 64, delta, state>``."""
    known = re.sub(r"^void |fwp::(gpu::)?|\([^()]*\)$", "", run("c++filt", name).strip())
    names = {"Rule": RULES, "Kind": KINDS}
    return re.sub(r"\((Rule|Kind)\)(\d)", lambda found: names[found[1]][int(found[2])], known)


def kernels_of(source: str, report: str) -> list[Kernel]:
    """Returns the kernels of a source from the assembler's report, or from its lines of PTX.

    After each kernel the report lists the functions that it calls. The bytes that these spill count as the kernel's.
    """
    found = {name: Kernel(source, readable_name(name), {}) for name in re.findall(r"\.entry (\w+)", report)}
    for part in re.split(r"(?=Compiling entry function)", report)[1:]:
        name, device = re.match(r"Compiling entry function '(\w+)' for '(\w+)'", part).groups()
        registers = int(re.search(r"Used (\d+) registers", part)[1])
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
        found.setdefault(name, Kernel(source, readable_name(name), {})).used[device] = registers, spilled
    return list(found.values())


def text_of(path: Path) -> str:
    """Returns a source and the project's headers that it includes, without comments, line breaks and indentation."""
    text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
    included = [text_of(path.parent / name) for name in re.findall(r'#include "(.+)"', text)]
    return " ".join(text.split() + included)


def compile_one(nvcc: str, version: str, source: Path, assemble: bool) -> list[Kernel]:
    """Compiles a source, unless its report is known, and returns its kernels.

    nvcc compiles to PTX for the oldest device, because the sources do not depend on the device. If ``assemble``, the
    PTX is then compiled to machine code for each device.
    """
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
    """Returns, for each kernel, the threads and the bytes of shared memory of a block, as printed by sizes.cpp."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "sizes")
        run(*os.environ.get("CXX", "g++").split(), "-std=c++17", CUDA / "shim" / "sizes.cpp", "-o", program)
        lines = [line.split("\t") for line in run(program).splitlines()]
    return {name: (int(threads), int(size)) for name, threads, size in lines}


def table(kernels: list[Kernel], sizes: dict[str, tuple[int, int]], compiler: str) -> str:
    """Returns the table in Markdown, sorted by source and kernel."""

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
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the table would change")
    parser.add_argument(
        "--all",
        action="store_true",
        help="compile every source to machine code, and print the table instead of writing it",
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="how many compilers run at a time"
    )
    parser.add_argument("--print-nvcc", action="store_true", help="only print the compiler that would be used")
    arguments = parser.parse_args()

    nvcc = find_nvcc()
    if nvcc is None:
        parser.exit(1, "no nvcc: it is neither in CUDA_HOME or CUDA_PATH nor on PATH nor in /usr/local/cuda/bin\n")
    if arguments.print_nvcc:
        print(nvcc)
        return 0
    version = re.search(r"V([\d.]+)", run(nvcc, "--version"))[1]
    known, compiler = sizes(), f"nvcc {version}"
    BUILD.mkdir(parents=True, exist_ok=True)

    def work(source: Path) -> list[Kernel]:
        return compile_one(nvcc, version, source, arguments.all or is_assembled(source.stem))

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
        print(f"the table in {name} was made by another compiler than {compiler}, so the numbers are not compared")
    elif stale:
        print(
            f"the table in {name} does not agree with the compiler's reports: run scripts/kernel_resources.py",
            file=sys.stderr,
        )
    print(
        f"{len(kernels)} kernels by {compiler}, {sum(bool(kernel.used) for kernel in kernels)} of them as machine code"
    )
    return 1 if spilling or stale else 0


if __name__ == "__main__":
    sys.exit(main())
