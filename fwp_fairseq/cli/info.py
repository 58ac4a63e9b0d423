"""Reports what is installed and built, and which backend serves which operator, with reasons."""

import json
import os
import platform
import sys
from importlib import metadata

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
    """Name and version of the first of these distributions that is installed."""
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


def _backends(operator: str, device: str) -> dict:
    """The backend that "auto" picks (``chosen``), and why each other cannot serve (``reasons``, empty if it can)."""
    if device == "cuda" and not torch.cuda.is_available():
        return {"chosen": None, "reasons": {"all": ["no CUDA device is visible to torch"]}}
    report = backend_report(operator, device)
    return {"chosen": next((name for name, reasons in report if not reasons), None), "reasons": dict(report)}


def _served() -> dict[str, dict]:
    """Of each operator and kind of device, what :func:`_backends` says."""
    return {f"{rule}_rule": {device: _backends(f"{rule}_rule", device) for device in ("cpu", "cuda")} for rule in RULES}


def served_rows(served: dict[str, dict] | None = None) -> dict[str, str]:
    """The same for reading."""
    rows = {}
    for operator, devices in (_served() if served is None else served).items():
        for device, found in devices.items():
            rows[f"{operator} on {device}"] = found["chosen"] or "no backend"
            for backend, reasons in found["reasons"].items():
                if reasons:
                    rows[f"{operator} on {device}"] += f"\n      not {backend}: {'; '.join(reasons)}"
    return rows


def collect() -> dict:
    """Collects everything that ``fwp info`` prints, as plain JSON types."""
    return {
        "versions": _versions(),
        "machine": _machine(),
        "build": _extension.build_record(),
        "libraries": library_rows(),
        "backends": _served(),
    }


def section(title: str, rows: dict) -> list[str]:
    width = max(map(len, rows))
    return [title, *(f"  {name:<{width}}  {value}" for name, value in rows.items()), ""]


def _build_rows(record: dict | None) -> dict[str, str]:
    if record is None:
        return {"record": "none: the package was not installed by pip"}
    kept = {part: torch or "unknown" for part, torch in record.get("kept", {}).items()}
    return {
        "FWP_BUILD": record["target"],
        "built": ", ".join(record["built"]) or "nothing",
        **{f"{part} kept": f"the library of an earlier build, for torch {torch}" for part, torch in kept.items()},
        **{f"{part} not built": reason for part, reason in record["reasons"].items() if reason},
        **{tool: record[tool] for tool in ("torch", "compiler", "nvcc") if record[tool]},
    }


def text(info: dict) -> str:
    """Formats the result of :func:`collect` for reading."""
    lines = section("versions", info["versions"]) + section("machine", info["machine"])
    lines += section("build", _build_rows(info["build"])) + section("compiled libraries", info["libraries"])
    return "\n".join(lines + section("backend=auto picks", served_rows(info["backends"]))).rstrip()


def add_arguments(parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args) -> int:
    found = collect()
    print(json.dumps(found, indent=2) if args.json else text(found))
    return 0
