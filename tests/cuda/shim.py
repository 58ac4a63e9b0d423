"""Compiles kernel sources of csrc/cuda for the CPU (csrc/cuda/shim) and loads them.

The objects stand in build/shim, one a source and state of csrc/cuda: only the first run after a change compiles.
"""

import ctypes
import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CUDA = ROOT / "csrc" / "cuda"
BUILD = ROOT / "build" / "shim"
COMPILER = [
    *os.environ.get("CXX", "g++").split(),
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
]


def _compiled(source: Path, state: str) -> Path:
    target = BUILD / f"{source.stem}-{state}.o"
    if not target.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        for stale in BUILD.glob(f"{source.stem}-*.o"):
            stale.unlink(missing_ok=True)
        part = target.with_suffix(f".{os.getpid()}")
        subprocess.run([*COMPILER, f"-I{CUDA}", "-x", "c++", "-c", source, "-o", part], check=True)
        part.replace(target)
    return target


@cache
def library(*sources: Path) -> ctypes.CDLL:
    """The sources and the shim as one library of functions with C names."""
    headers = hashlib.sha256(" ".join(COMPILER).encode())
    for path in sorted((*CUDA.rglob("*.h"), *CUDA.rglob("*.cuh"))):
        headers.update(path.read_bytes())

    def compiled(source: Path) -> Path:
        state = headers.copy()
        state.update(source.read_bytes())
        return _compiled(source, state.hexdigest()[:16])

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, (CUDA / "shim" / "device.cpp", *sources)))
    names = hashlib.sha256(" ".join(map(str, objects)).encode()).hexdigest()[:16]
    target = BUILD / f"{sources[0].stem}-{names}.so"
    if not target.exists():
        for stale in BUILD.glob(f"{sources[0].stem}-*.so"):
            stale.unlink(missing_ok=True)
        part = target.with_suffix(f".{os.getpid()}")
        subprocess.run([*COMPILER, "-shared", *objects, "-o", part], check=True)
        part.replace(target)
    return ctypes.CDLL(str(target))
