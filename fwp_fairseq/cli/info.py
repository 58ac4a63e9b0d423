"""Reports what is installed and built, and which backend serves which operator, with reasons."""

import os
import platform
import sys
from importlib import metadata
from itertools import product

import numpy
import torch

from .. import __version__, _extension
from ..ops.backends import backend_report
from ..ops.call import RULES

_DISTRIBUTIONS = {
    "fairseq": ("fairseq-fixed", "fairseq"),
    "sacrebleu": ("sacrebleu",),
    "sentencepiece": ("sentencepiece",),
    "omegaconf": ("omegaconf",),
    "hydra": ("hydra-core",),
}


def distribution_version(*names: str) -> str | None:
    """Returns name and version of the first of these distributions that is installed."""
    for name in names:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return None


def _versions() -> dict[str, str]:
    return {
        "fwp_fairseq": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "torch": f"{torch.__version__} (CUDA {torch.version.cuda})" if torch.version.cuda else torch.__version__,
        "numpy": numpy.__version__,
        **{name: distribution_version(*names) or "not installed" for name, names in _DISTRIBUTIONS.items()},
    }


def _machine() -> dict[str, str]:
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "compiled CPU kernels": torch.ops.fwp.cpu_capability() if _extension.status().cpu else "none",
        "threads": str(torch.get_num_threads()),
        "CUDA devices": ", ".join(devices) or "none",
        "CUDA_HOME": os.environ.get("CUDA_HOME", "not set"),
    }


def library_rows() -> dict[str, str]:
    status = _extension.status()
    return {part: str(status.libraries.get(part) or status.reasons[part]) for part in _extension.PARTS}


def served_rows() -> dict[str, str]:
    """Lists, for each operator and kind of device, the backend that "auto" picks and why the others cannot serve."""
    rows = {}
    for rule, device in product(RULES, ("cpu", "cuda")):
        report = [("any backend", ["no CUDA device is visible to torch"])]
        if device == "cpu" or torch.cuda.is_available():
            report = backend_report(rule, device)
        chosen = next((name for name, reasons in report if not reasons), "no backend")
        refused = (f"\n      not {name}: {'; '.join(reasons)}" for name, reasons in report if reasons)
        rows[f"{rule}_rule on {device}"] = "".join([chosen, *refused])
    return rows


def section(title: str, rows: dict) -> list[str]:
    width = max(map(len, rows))
    return [title, *(f"  {name:<{width}}  {value}" for name, value in rows.items()), ""]


def _build_rows(record: dict | None) -> dict[str, str]:
    if record is None:
        return {"record": "none: the package was not installed by pip"}
    kept = {part: torch or "unknown" for part, torch in record.get("kept", {}).items()}
    return {
        "FWP_BUILD": record.get("target", "unknown"),
        "built": ", ".join(record.get("built") or ()) or "nothing",
        **{f"{part} kept": f"the library of an earlier build, for torch {torch}" for part, torch in kept.items()},
        **{f"{part} not built": reason for part, reason in record.get("reasons", {}).items() if reason},
        **{tool: record[tool] for tool in ("torch", "compiler", "nvcc") if record.get(tool)},
    }


def run(args) -> int:
    lines = section("versions", _versions()) + section("machine", _machine())
    lines += section("build", _build_rows(_extension.build_record())) + section("compiled libraries", library_rows())
    print("\n".join(lines + section("backend=auto picks", served_rows())).rstrip())
    return 0
