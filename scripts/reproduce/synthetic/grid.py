"""The program of both settings: reads the command line, trains the points that are not recorded, and records them."""

import argparse
import json
import time
from pathlib import Path

import torch

from fwp_fairseq.ops.backends import CHOICES as BACKENDS
from scripts.common import program
from scripts.common.folder import Folder, RecipeError
from scripts.common.progress import duration
from scripts.results import records
from scripts.results.synthetic_models import D_KEY, MODELS, Variant
from scripts.results.synthetic_published import published

from .training import EVALUATE_EVERY, PATIENCE, Point
from .workers import Event, train_all

ROOT = Path(__file__).resolve().parents[3]
RECORDS = ROOT / "benchmarks/results/synthetic.jsonl"
LINE_EVERY_SECONDS = 60
UNKNOWN_STEPS = 3000


def arguments(prog: str, description: str, sizes: range, quick: dict[str, tuple[int, ...]]):
    """Parses the command line; ``points`` of the result holds the selected grid, the quickest points first."""
    setting = int(prog[-1])
    models = MODELS[setting]
    parser = argparse.ArgumentParser(
        prog=f"{prog}.py",
        description=description,
        epilog="A point that is recorded is skipped, so the same command continues a run that was stopped.",
        allow_abbrev=False,
    )
    parser.add_argument("--quick", action="store_true", help="a thinned grid: 20 minutes with --jobs 2 on 2 cores")
    parser.add_argument(
        "--models", nargs="+", choices=models, metavar="MODEL", help=f"only these (all: {' '.join(models)})"
    )
    parser.add_argument("--sizes", nargs="+", type=int, metavar="S", help=f"numbers of keys (default: {_text(sizes)})")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of initialisation and data (default 1)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="points at a time (default 1)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: cuda if available")
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="backend of the operators (default auto)")
    out = Path("runs/synthetic") / prog
    parser.add_argument("--out", type=Path, default=ROOT / out, metavar="DIR", help=f"default: {out}")
    parser.add_argument(
        "--record",
        action="store_true",
        help=f"append to {RECORDS.relative_to(ROOT)} instead of DIR/synthetic.jsonl",
    )
    options = parser.parse_args()
    if options.quick and (options.models or options.sizes):
        parser.error("--quick is a grid of its own: drop --models and --sizes")
    for flag, least in (("jobs", 1), ("seed", 0)):
        if getattr(options, flag) < least:
            parser.error(f"--{flag} {getattr(options, flag)}: expected {least} or more")
    for S in options.sizes or ():
        if S < 1:
            parser.error(f"--sizes {S}: expected 1 or more")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device")
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.quick:
        chosen = [(model, S) for model, sizes_of_model in quick.items() for S in sizes_of_model]
    else:
        chosen = [(model, S) for S in options.sizes or sizes for model in options.models or models]
    options.points = sorted({Point(setting, model, S, options.seed) for model, S in chosen}, key=work)
    return options


def _text(sizes: range) -> str:
    return f"{sizes[0]}, {sizes[1]}, ... {sizes[-1]}"


def _expected_steps(point: Point) -> int:
    theirs = published(point.setting, point.model, point.S)
    if theirs is None:
        return UNKNOWN_STEPS
    return theirs.step + (0 if theirs.solved else PATIENCE * EVALUATE_EVERY)


def work(point: Point) -> float:
    """Estimates the milliseconds of CPU time that a point takes if it trains as long as the authors' did.

    The estimate serves to order the points, the quickest first, and to predict the remaining time.
    """
    variant, L, rows = Variant.of(point.model), 2 * point.S if point.replace else point.S, point.batch / 32
    phi = variant.build_feature_map()
    d_dot = D_KEY if phi is None else phi.d_dot
    step = 1.5 + rows * L * (3e-4 * d_dot * (2 if variant.rule == "delta" else 1) + 2e-4 * point.S)
    if variant.rule == "fwm":
        step += L * (1 + rows * 1e-4 * d_dot * point.S)
    return _expected_steps(point) * step


def _done(path: Path) -> set[Point]:
    if not path.exists():
        return set()
    found = set()
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if line.strip():
            try:
                record = json.loads(line)
                found.add(Point(*(record[name] for name in ("setting", "model", "S", "seed"))))
            except (ValueError, KeyError, TypeError) as error:
                raise RecipeError(f"{path}:{number}: no record of a point: {error}") from None
    return found


class _Progress:
    """Prints a line for each finished point, and one per minute for those that are running."""

    def __init__(self, points: list[Point]):
        self.work = {point: work(point) for point in points}
        self.done: set[Point] = set()
        self.running: dict[Point, Event] = {}
        self.begin = self.said = time.monotonic()

    def _left(self) -> str:
        """The remaining time at the speed of this session, as text; running points count by their steps."""
        done = sum(self.work[point] for point in self.done)
        done += sum(
            min(0.9, event.steps / _expected_steps(point)) * self.work[point] for point, event in self.running.items()
        )
        if not done:
            return ""
        left = (time.monotonic() - self.begin) * (sum(self.work.values()) - done) / done
        return f"; about {duration(left)} left" if left else ""

    def event(self, event: Event | None) -> None:
        if event is None:
            pass
        elif event.record is None:
            self.running[event.point] = event
        else:
            self.running.pop(event.point, None)
            self.done.add(event.point)
            record = event.record
            best = "no finite loss" if record["best_loss"] is None else f"loss {record['best_loss']:.4f}"
            self._say(
                f"{event.point}: {best}, {record['stop']} after {record['steps']} steps, {duration(record['seconds'])}"
            )
        if self.running and time.monotonic() - self.said >= LINE_EVERY_SECONDS:
            now = (f"{point} step {event.steps} loss {event.loss:.4f}" for point, event in self.running.items())
            self._say(f"running: {', '.join(now)}")

    def _say(self, text: str) -> None:
        self.said = time.monotonic()
        print(f"[{len(self.done)}/{len(self.work)}] {text}{self._left()}", flush=True)


def _run(options: argparse.Namespace) -> None:
    path = RECORDS if options.record else options.out / RECORDS.name
    if options.record:
        records.require_commit()
    done = _done(path)
    points = [point for point in options.points if point not in done]
    print(f"{len(options.points)} points, {len(options.points) - len(points)} of them recorded in {path}", flush=True)
    if not points:
        return
    progress = _Progress(points)
    for event in train_all(points, options.jobs, options.device, options.backend):
        if event is not None and event.record is not None and event.point not in _done(path):
            records.append(path, {**event.record, "environment": records.environment()})
        progress.event(event)


def main(options: argparse.Namespace) -> int:
    """Runs the points that have no record yet; returns 0, or prints the error and returns 1."""
    options.out = program.from_root(options.out)

    def work() -> None:
        with Folder(options.out, ()).locked():
            _run(options)

    return program.run(work, "does the points that are missing")
