#!/usr/bin/env python3
"""Compiles the CUDA kernels for sm_80 and sm_90 (nvcc, no GPU) and keeps the table of what they use in docs/kernels.md.

Fails when a source does not compile or a kernel that must not spills registers. --check changes nothing and fails when
the table differs, where the compiler is the one that made it.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "csrc" / "cuda" / "kernels"
PAGE = ROOT / "docs" / "kernels.md"
BEGIN, END = "<!-- kernel resources: scripts/kernel_resources.py -->\n", "<!-- /kernel resources -->"

# Sources whose machine code is made and measured, for which devices. The others are compiled to PTX once: assembling
# them takes several times as long, and they serve what is rare (states, FAVOR+) or not meant to be fast (float32).
MEASURED = {
    "forward_half_sum": ("sm_80", "sm_90"),
    "forward_half_delta": ("sm_80", "sm_90"),
    "backward_half_sum": ("sm_80", "sm_90"),
    "backward_half_delta": ("sm_80", "sm_90"),
    "forward_single_sum": ("sm_90",),
    "forward_single_delta": ("sm_90",),
}
OTHERS = ("sm_80",)
_ENTRY = re.compile(r"Compiling entry function '\w*?(forward|backward)_kernelINS0_\d+(Half|Single)ELi(\d+)ELb([01])E")
_SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")

_SIZES = """
#include <cstdio>
#include <kernels/head.cuh>
using namespace fwp::gpu;
template <class P, int LT> void print(const char* operands) {
  Call call{};
  call.map = Map::dpfp;
  call.d_key = call.d_value = 64;
  for (bool backward : {false, true}) {
    Shared<P, LT> shared;
    std::printf("%s %s %d %d\\n", backward ? "backward" : "forward", operands, LT, shared.lay(nullptr, call, backward));
  }
}
template <class P> void print_all(const char* operands) {
  print<P, 16>(operands);
  print<P, 32>(operands);
  print<P, 64>(operands);
  print<P, 128>(operands);
}
int main() {
  print_all<Half>("Half");
  print_all<Single>("Single");
}
"""


def must_not_spill(operands: str, tokens: int, rule: str) -> bool:
    return operands == "Half" and (tokens <= 64 or rule == "sum")


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def compile_one(source: str, device: str, folder: Path) -> str:
    """The assembler's report; empty for a source that stops at PTX."""
    measured = source in MEASURED
    architecture = device if measured else device.replace("sm", "compute")
    output = folder / f"{source}-{device}"
    kind = ["-cubin", "-Xptxas", "-v"] if measured else ["-ptx"]
    options = ("-std=c++17", "-O3", f"-arch={architecture}", *kind)
    report = run("nvcc", *options, "-I", KERNELS.parent, KERNELS / f"{source}.cu", "-o", output)
    print(f"compiled {source} for {device}", flush=True)
    return report if measured else ""


def shared_bytes(folder: Path) -> dict[tuple[str, str, int], int]:
    """(kernel, operands, tokens) to the bytes of a block for DPFP with d_key = d_value = 64."""
    source = folder / "sizes.cpp"
    source.write_text(_SIZES)
    run(os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-I", KERNELS.parent, source, "-o", folder / "sizes")
    lines = (line.split() for line in run(folder / "sizes").splitlines())
    return {(kernel, operands, int(tokens)): int(size) for kernel, operands, tokens, size in lines}


def rows_of(report: str, device: str, shared: dict) -> list[tuple]:
    rows = []
    for part in re.split(r"(?=Compiling entry function)", report)[1:]:
        kernel, operands, tokens, delta = _ENTRY.match(part).groups()
        _, stores, loads = map(int, _SPILL.search(part).groups())
        registers = int(re.search(r"Used (\d+) registers", part).group(1))
        rule, size = "delta" if delta == "1" else "sum", shared[kernel, operands, int(tokens)]
        rows.append((kernel, operands, int(tokens), rule, device, registers, stores + loads, size))
    return rows


def table(rows: list[tuple], compiler: str) -> str:
    head = (
        "kernel",
        "operands",
        "tokens a block",
        "rule",
        "device",
        "threads",
        "registers",
        "spilled bytes",
        "shared memory",
    )
    lines = [head, ["---"] * len(head)]
    for kernel, operands, tokens, rule, device, registers, spilled, size in sorted(rows):
        text = {"Half": "fp16", "Single": "3 x tf32"}[operands]
        lines.append((kernel, text, tokens, rule, device, 2 * tokens, registers, spilled, f"{size / 1024:.1f} kB"))
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + f"\n\nCompiler: {compiler}.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail when the table would change")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="compilers at a time")
    arguments = parser.parse_args()

    version = re.search(r"V([\d.]+)", run("nvcc", "--version")).group(1)
    rows = []
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(arguments.jobs) as pool:
        folder = Path(name)
        shared = shared_bytes(folder)
        sources = sorted((path.stem for path in KERNELS.glob("*.cu")), key=lambda stem: stem not in MEASURED)
        wanted = [(source, device) for source in sources for device in MEASURED.get(source, OTHERS)]
        jobs = {(source, device): pool.submit(compile_one, source, device, folder) for source, device in wanted}
        for (_, device), job in jobs.items():
            rows += rows_of(job.result(), device, shared)
    spilling = [row for row in rows if row[6] and must_not_spill(*row[1:4])]
    for kernel, operands, tokens, rule, device, _, spilled, _ in spilling:
        print(f"{kernel} {operands} {tokens} {rule} {device}: {spilled} bytes spilled, expected none", file=sys.stderr)

    before = PAGE.read_text(encoding="utf-8")
    start, end = before.index(BEGIN) + len(BEGIN), before.index(END)
    compiler = f"nvcc {version}"
    after = before[:start] + table(rows, compiler) + before[end:]
    if not arguments.check:
        PAGE.write_text(after, encoding="utf-8")
    elif after != before and f"Compiler: {compiler}." in before:
        print(f"{PAGE} is not what the compiler reports: run {Path(__file__).name}", file=sys.stderr)
        return 1
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
