"""Compiles sources of csrc/cuda for the CPU (tests/cuda/shim) into libraries: kernels, and the glue around them.

The objects are kept in build/shim, one per unit of sources and state of csrc/cuda. Only the first run after a change
compiles them, and in it only one of several processes.
"""

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tests.shared import locked

ROOT = Path(__file__).resolve().parents[2]
CUDA = ROOT / "csrc" / "cuda"
SHIM = Path(__file__).parent / "shim"
_SHIM_SOURCES = tuple(
    SHIM / f"{name}.cpp" for name in ("device", "halves", "products", "places", "races", "accesses", "translated")
)
INSTANCES = CUDA / "kernels" / "instances"
BUILD = ROOT / "build" / "shim"
COMPILER = [
    *os.environ.get("CXX", "g++").split(),
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
    # A wide access to an address that is not a multiple of its size ends the process, because a GPU does not allow it.
    "-fsanitize=alignment",
    "-fsanitize-undefined-trap-on-error",
]
# torch is not imported here: what stands in for CUDA (emulated_device.py) has to be there before.
_TORCH = Path(find_spec("torch").origin).parent
_GLUE = [
    f"-I{SHIM / 'include'}",
    *(f"-isystem{_TORCH / 'include' / folder}" for folder in ("", "torch/csrc/api/include")),
    "-std=c++20",
    f"-DTORCH={version('torch')}",  # for the name of the object
]
_FASTER = ["-O3"]  # most of the time in which kernels run is spent here
_KERNELS = ["-fsanitize=thread"]  # shim/accesses.cpp is what this calls
TRANSLATED = "ptx_"  # with this the names of ptx.py's sources begin
_LONG = ["-O0"]  # compiling takes most of the time
_LINKED = [f"-L{_TORCH / 'lib'}", f"-Wl,-rpath,{_TORCH / 'lib'}", "-ltorch_cpu", "-lc10"]


class Unit(NamedTuple):
    """Sources that the compiler reads as one."""

    name: str
    sources: tuple[Path, ...]
    flags: list[str]


def _units(sources: tuple[Path, ...], glue: tuple[Path, ...]) -> list[Unit]:
    """Those that take longest first, because others are compiled meanwhile.

    The glue is one unit, because reading torch's headers takes longer than everything else.
    """
    first = [Unit("glue", glue, _GLUE)] if glue else []
    kernels = [Unit(one.stem, (one,), _LONG if one.name.startswith(TRANSLATED) else _KERNELS) for one in sources]
    return [*first, *kernels, *(Unit(one.stem, (one,), _FASTER) for one in _SHIM_SOURCES)]


def _compiled(unit: Unit, state: str) -> Path:
    target = BUILD / f"{unit.name}-{state}.o"
    if not target.exists():
        for stale in BUILD.glob(f"{unit.name}-*.o"):
            stale.unlink(missing_ok=True)
        together = BUILD / f"{unit.name}.cpp"
        together.write_text("".join(f'#include "{source}"\n' for source in unit.sources))
        part = target.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [*COMPILER, f"-I{CUDA}", f"-I{Path(__file__).parent}", *unit.flags, "-c", together, "-o", part], check=True
        )
        part.replace(target)
    return target


def headers():
    """The digest of what every source may include."""
    found = hashlib.sha256()
    for header in sorted(
        (*CUDA.rglob("*.h"), *CUDA.rglob("*.cuh"), *SHIM.rglob("*.h"), *(CUDA.parent / "common").glob("*.h"))
    ):
        found.update(header.read_bytes())
    return found


@cache
def path(*sources: Path, glue: tuple[Path, ...] = ()) -> Path:
    """Builds the library of the sources and the shim. ``glue`` is compiled with torch and shim/include."""
    included = headers()

    def compiled(unit: Unit) -> Path:
        state = included.copy()
        state.update(" ".join([*COMPILER, *unit.flags]).encode() + b"".join(one.read_bytes() for one in unit.sources))
        return _compiled(unit, state.hexdigest()[:16])

    with locked(BUILD / ".lock"), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compiled, _units(sources, glue)))
        names = hashlib.sha256(" ".join(map(str, objects)).encode()).hexdigest()[:16]
        stem = "glue" if glue else sources[0].stem
        if any(source.stem.startswith(TRANSLATED) for source in sources):
            stem = TRANSLATED + stem
        target = BUILD / f"{stem}-{names}.so"
        if not target.exists():
            for stale in BUILD.glob(f"{stem}-*.so"):
                stale.unlink(missing_ok=True)
            part = target.with_suffix(f".{os.getpid()}")
            subprocess.run([*COMPILER, "-shared", *objects, *(_LINKED if glue else []), "-o", part], check=True)
            part.replace(target)
    return target


@cache
def library(*sources: Path) -> ctypes.CDLL:
    """Loads a library of functions with C names."""
    return ctypes.CDLL(str(path(*sources)))


@contextmanager
def watched(*loaded: ctypes.CDLL, without: str = "") -> Iterator[None]:
    """Within it a race in a kernel of the libraries is an error; the barrier at the places ``without`` is left out."""
    barriers(*loaded)  # forget
    for one in loaded:
        one.fwp_shim_watch(1)
        one.fwp_shim_leave_out(without.encode())
    try:
        yield
    finally:
        for one in loaded:
            one.fwp_shim_watch(0)
            one.fwp_shim_leave_out(b"")


def barriers(*loaded: ctypes.CDLL) -> set[tuple[str, str]]:
    """The barriers that watched kernels came to since the last call of this or :func:`watched`, kind and places.

    Threads that meet from different places make one barrier of several places.
    """
    found = set()
    for one in loaded:
        one.fwp_shim_places.restype = ctypes.c_char_p
        found |= {tuple(line.split(" ", 1)) for line in one.fwp_shim_places().decode().splitlines()}
    return found
