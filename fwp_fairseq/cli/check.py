"""Compares the compiled kernels of the CPU and of every GPU with PyTorch in float64; the status is 1 if one is wrong.

A GPU's kernels are used only after they have passed, so their first use does the same; the result is kept. This command
compares again, which a new driver or a failure that has been mended asks for.
"""

import torch

from .. import _extension, _self_check
from .info import library_rows, section, served_rows


def _devices() -> list[tuple[str, str]]:
    """Those whose kernels are loaded, and what they are."""
    found, status = [], _extension.status()
    if status.cpu:
        found.append(("cpu", torch.ops.fwp.cpu_capability()))
    if status.cuda:
        found += [(f"cuda:{i}", torch.cuda.get_device_name(i)) for i in range(torch.cuda.device_count())]
    return found


def _checked(device: str) -> _self_check.Verdict:
    if device == "cpu":
        return _self_check.check(device)
    name = _self_check.key(torch.device(device).index)
    return _self_check.remembered(name, lambda: _self_check.check(device), again=True)


def add_arguments(parser) -> None:
    pass


def run(args) -> int:
    print("\n".join(section("compiled libraries", library_rows())))
    devices, wrong = _devices(), []
    for device, name in devices:
        print(f"kernels of {device}, {name}")
        failure, report = _checked(device)
        print("".join(f"  {line}\n" for line in report.splitlines()))
        if failure:
            wrong.append(device)
            print(f"  FAILED: {failure}\n")
    print("\n".join(section("backend=auto picks", served_rows())))
    if not devices:
        print("nothing was checked: no compiled kernels are loaded")
    elif wrong:
        print(f"wrong: {', '.join(wrong)}")
    else:
        print(f"right: {', '.join(device for device, _ in devices)}")
    return int(bool(wrong) or not devices)
