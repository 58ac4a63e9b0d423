"""Compares the compiled kernels of the CPU and of every GPU with PyTorch in float64.

The exit status is 1 if a kernel is wrong, a device could not be used, or no compiled kernels are loaded. The kernels of
a GPU are compared automatically before their first use, and the result is kept. This command repeats the comparison,
for example after a fix. A GPU that serves only one process at a time must be checked before a training uses it.
"""

import torch

from .. import _extension, _gpu_check
from .info import library_rows, section, served_rows

SECONDS = 300  # for the comparison of a device


def _devices() -> list[tuple[str, str]]:
    """Returns the devices whose kernels are loaded, with their names."""
    devices, status = [], _extension.status()
    if status.cpu:
        devices.append(("cpu", torch.ops.fwp.cpu_capability()))
    if status.cuda:
        devices += [(f"cuda:{i}", torch.cuda.get_device_name(i)) for i in range(torch.cuda.device_count())]
    return devices


def _checked(device: str) -> _gpu_check.Verdict:
    def make() -> _gpu_check.Verdict:
        return _gpu_check.check(device, SECONDS)

    if device == "cpu":
        return make()
    return _gpu_check.remembered(_gpu_check.key(torch.device(device).index), make, again=True)


def _outcome(verdict: _gpu_check.Verdict) -> str:
    if not verdict.failure:
        return "right"
    return "wrong" if verdict.lasts else "not checked"


def run(args) -> int:
    print("\n".join(section("compiled libraries", library_rows())))
    outcomes: dict[str, list[str]] = {"right": [], "not checked": [], "wrong": []}
    for device, name in _devices():
        print(f"kernels of {device}, {name}")
        verdict = _checked(device)
        outcomes[_outcome(verdict)].append(device)
        print("".join(f"  {line}".rstrip() + "\n" for line in verdict.report.splitlines()))
        if verdict.failure:
            print(f"  {_outcome(verdict).upper()}: {verdict.failure}\n")
    # Last, because it uses the GPUs in this process, and some serve one process at a time.
    print("\n".join(section("backend=auto picks", served_rows())))
    for outcome, devices in outcomes.items():
        if devices:
            print(f"{outcome}: {', '.join(devices)}")
    if not any(outcomes.values()):
        print("nothing was checked: no compiled kernels are loaded")
    return int(not outcomes["right"] or bool(outcomes["not checked"] or outcomes["wrong"]))
