"""Loads the compiled libraries beside this file, or records why one cannot be loaded. Never raises."""

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

PARTS = ("cpu", "cuda")
_WITH_BACKWARD = (
    "fast_weights", "recur", "recur_lstm", "read_window", "softmax_pair", "to_length_one", "elu_to_length_one",
    "to_rms_one",
)  # fmt: skip
_OTHERS = ("decode", "fold", "read_source", "rules", "feature_maps", "cpu_capability", "choose_cpu_capability")
# The operators in csrc/fast_weights.cpp.
OPERATORS = (*_WITH_BACKWARD, *(f"{name}_backward" for name in _WITH_BACKWARD), *_OTHERS)


class ExtensionStatus(NamedTuple):
    """The loaded libraries (part to path), and for every other part the reason why it is not loaded (part to text)."""

    libraries: dict[str, Path]
    reasons: dict[str, str]

    @property
    def cpu(self) -> bool:
        return "cpu" in self.libraries

    @property
    def cuda(self) -> bool:
        return "cuda" in self.libraries


def build_record(folder: Path = Path(__file__).parent) -> dict | None:
    """Reads the record that ``setup.py`` wrote about its build; None where there is none.

    Its entries: target, built, sha256, kept, reasons, torch, compiler, nvcc. ``kept`` lists the libraries of an earlier
    build that this one could not replace: each part with the version of torch that it was built for.
    """
    try:
        record = json.loads((folder / "_build.json").read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict):
        return None
    kinds = {"torch": str, "target": str, "sha256": dict, "kept": dict, "reasons": dict}
    return {name: value for name, value in record.items() if isinstance(value, kinds.get(name, object))}


def _version(text: str) -> str:
    return str(text).partition("+")[0]


def digest(library: Path) -> str:
    """Computes the SHA-256 of the file, as ``setup.py`` writes it into the record."""
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _damage(library: Path, expected: str | None) -> str | None:
    """Returns the reason not to load the file, or None, without loading it: a truncated library kills the process."""
    if expected is None:
        return "no _build.json beside it names this file"
    try:
        actual = digest(library)
    except OSError as error:
        return str(error)
    return (
        None
        if actual == expected
        else f"it is not the file that was built: sha256 expected {expected}, actual {actual}"
    )


def _switched_off(part: str) -> str | None:
    """Returns the user's reason for switching this library off, or None."""
    wanted = os.environ.get("FWP_CUDA", "1")
    if part != "cuda" or wanted == "1":
        return None
    return "switched off by FWP_CUDA=0" if wanted == "0" else f"not loaded: FWP_CUDA={wanted}, expected 0 or 1"


def load(folder: Path) -> ExtensionStatus:
    """Loads the libraries in ``folder`` and returns which ones loaded; :func:`status` does it for this package."""
    record = build_record(folder) or {}
    libraries: dict[str, Path] = {}
    reasons: dict[str, str] = {}
    for part in PARTS:  # in this order: the CPU library defines the operators that the CUDA library implements
        path = folder / f"_{part}.abi3.so"
        built_for = (record.get("kept") or {}).get(part, record.get("torch"))
        if reason := _switched_off(part):
            reasons[part] = reason
        elif not path.exists():
            recorded = (record.get("reasons") or {}).get(part)
            skipped = f"FWP_BUILD={record['target']}" if "target" in record else "the package was not installed by pip"
            reasons[part] = f"not built: {recorded or skipped}"
        elif part == "cuda" and "cpu" not in libraries:
            reasons[part] = "not loaded: needs the CPU library, which defines the operators"
        elif built_for is not None and _version(built_for) != _version(torch.__version__):
            # Torch promises no binary compatibility between versions: such a library may load and then crash.
            reasons[part] = f"not loaded: built for torch {built_for}, this is torch {torch.__version__}; install again"
        elif problem := _damage(path, (record.get("sha256") or {}).get(part)):
            reasons[part] = f"not loaded: {path}: {problem}; install again"
        else:
            try:
                torch.ops.load_library(str(path))
                if missing := [name for name in OPERATORS if not hasattr(torch.ops.fwp, name)]:
                    reasons[part] = f"not used: built from older sources, without {', '.join(missing)}; install again"
                    continue
                libraries[part] = path
            except (OSError, RuntimeError) as error:
                reasons[part] = f"not loaded: {' '.join(str(error.__cause__ or error).split())}"
    return ExtensionStatus(libraries, reasons)


@cache
def status() -> ExtensionStatus:
    """Loads the compiled libraries on the first call; later calls return the result of the first."""
    return load(Path(__file__).parent)
