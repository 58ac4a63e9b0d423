"""Times operators of earlier commits, each in a process of its own, which registers its own compiled library.

Each process imports the package ``fwp_fairseq`` of its commit, and of this checkout those files of the benchmark that
need nothing of the package but operators and feature maps. It reads calls, a line each, and answers each with a line.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class Earlier:
    """The commits whose packages lie in ``folder/COMMIT/fwp_fairseq``; none without a folder.

    Raises SystemExit for a folder that has none.
    """

    def __init__(self, folder: Path | None, device: str, seconds: float):
        self.call = {"device": device, "seconds": seconds}
        homes = [] if folder is None else sorted(package.parent for package in folder.glob("*/fwp_fairseq"))
        if folder is not None and not homes:
            raise SystemExit(f"error: --earlier {folder}: expected COMMIT/fwp_fairseq in it, found none")
        self.processes = {
            home.name: subprocess.Popen(
                [sys.executable, "-m", "benchmarks.earlier"], cwd=home, text=True,
                env={**os.environ, "PYTHONPATH": f"{home}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
            for home in homes
        }  # fmt: skip

    def added(self, measured: dict, case) -> dict:
        """Adds what each commit measures of a case, under the commit's name, to the results of this checkout."""
        for name, process in self.processes.items():
            print(json.dumps({**self.call, "case": asdict(case)}), file=process.stdin, flush=True)
            answer = next((line for line in process.stdout if line.startswith("{")), None)
            if answer is None:
                raise SystemExit(f"error: the process of commit {name} ended with status {process.wait()}")
            for kind, values in json.loads(answer).items():
                if "ours" in values:
                    measured[kind][name] = values["ours"]
        return measured

    def end(self) -> None:
        for process in self.processes.values():
            process.communicate()


def main() -> None:
    import torch

    from . import operators
    from .cases import Case
    from .implementations import IMPLEMENTATIONS

    torch.set_num_threads(1)
    # The limits of errors are those of this checkout's kernels.
    ours = {"ours": replace(IMPLEMENTATIONS["ours"], ours=False)}
    for line in sys.stdin:
        call = json.loads(line)
        print(json.dumps(operators.measure(Case(**call["case"]), call["device"], call["seconds"], ours)), flush=True)


if __name__ == "__main__":
    main()
