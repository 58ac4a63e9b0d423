"""Times the CPU operators of this checkout against those of another: `python -m benchmarks.checkouts FOLDER`.

FOLDER is a checkout of another commit with its compiled kernels, for example from

  git worktree add ../before COMMIT && (cd ../before && FWP_BUILD=cpu python setup.py build_ext --inplace)

Each checkout runs in a process of its own with one thread. In every case the two take turns, so that both are affected
if the machine becomes slower. The smallest CPU time of each checkout counts; for decoding it is that of several steps
in a row. Each line of output ends with the ratio of this checkout's time to the other's, and the last line is the
geometric mean of the ratios.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from .cases import CASES, HEADS, STEPS, WIDTH
from .program import Session, parser

TURNS = 8
WORKER = Path(__file__).with_name("checkout_worker.py").read_text(encoding="utf-8")


class Checkout:
    """The process that times one checkout."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line: str = ""):
        """Sends the process one line and returns its answer: an empty line asks for the CPU time of one more turn."""
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"error: {self.folder}: the process that times it ended with {self.process.wait()}")
        return json.loads(answer)

    def prepare(self, case) -> None:
        """Has the process make the tensors of a case, and checks that it uses the package of its own checkout."""
        names = ("part", "dtype", "rule", "rows", "length", "d_dot", "feature_map")
        given = {name: getattr(case, name) for name in names} | {"heads": HEADS, "width": WIDTH, "steps": STEPS}
        used = Path(self.ask(json.dumps(given)))
        if not used.is_relative_to(self.folder):
            raise SystemExit(f"error: {self.folder}: expected that it imports its own fwp_fairseq, found {used}")


def commit(folder: Path) -> str:
    """Returns the commit that is checked out in the folder."""
    command = ["git", "-C", folder, "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def main() -> int:
    options = parser(__doc__, ("cpu",))
    options.add_argument("folder", type=Path, metavar="FOLDER", help="the other checkout")
    arguments = options.parse_args()
    if not (arguments.folder / "fwp_fairseq").is_dir():
        raise SystemExit(f"error: {arguments.folder}: expected a checkout with a folder fwp_fairseq")
    session = Session("checkouts", arguments)
    cases = session.chosen([case for case in CASES["cpu"] if case.part != "reorder"])
    here, other = Checkout(Path(__file__).resolve().parents[1]), Checkout(arguments.folder.resolve())
    ratios = []
    for case in session.until_deadline(cases):
        for checkout in (here, other):
            checkout.prepare(case)
        seconds = [min(times) for times in zip(*((here.ask(), other.ask()) for _ in range(TURNS)), strict=True)]
        ratios.append(seconds[0] / seconds[1])
        print(f"{case.name:36} {1e3 * seconds[0]:9.3f} ms {1e3 * seconds[1]:9.3f} ms   {ratios[-1]:.3f}", flush=True)
        session.record(case=case.name, seconds=seconds[0], other_seconds=seconds[1], other=commit(other.folder))
    print(f"geometric mean of {len(ratios)} ratios: {statistics.geometric_mean(ratios):.3f}")
    return session.status()


if __name__ == "__main__":
    sys.exit(main())
