"""The command line of the experiment."""

from __future__ import annotations

import argparse
import shlex
import threading
from pathlib import Path

from scripts.common import interruption, packages, program
from scripts.common.commands import printed
from scripts.common.folder import RecipeError
from scripts.common.progress import say
from scripts.common.runner.parallel import Shared, carry_out

from . import corpus, training
from .rows import BY_NAME
from .training import SIZES, Run

OUT = Path("runs/documents")
DESCRIPTION = """\
Translates documents: softmax attention, fast weights, and both, by length of the source.

  python -m scripts.experiments.documents prepare
  nice python -m scripts.experiments.documents train --rows softmax hybrid --jobs 2

After an interruption the same command goes on.
"""


def parse(argv: list[str]) -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m scripts.experiments.documents", description=DESCRIPTION, formatter_class=layout
    )
    add = parser.add_argument
    add("what", choices=["prepare", "train"])
    add("--size", choices=list(SIZES), default="documents", help="(default: documents)")
    add("--rows", nargs="+", choices=list(BY_NAME), default=list(BY_NAME), metavar="ROW", help=", ".join(BY_NAME))
    add("--seeds", nargs="+", type=int, default=[1], metavar="N", help="(default: 1)")
    add("--lr", default=Run.DEFAULTS["lr"], metavar="X", help="learning rate (default: %(default)s)")
    add("--warmup", type=int, default=Run.DEFAULTS["warmup"], metavar="N", help="updates (default: %(default)s)")
    add("--layer-norm", choices=["before", "after"], default=Run.DEFAULTS["layer_norm"], help="(default: %(default)s)")
    add("--max-update", type=int, default=60000, metavar="N", help="train for at most so many (default: %(default)s)")
    add("--jobs", type=int, default=1, metavar="N", help="how many trainings go on at a time (default: 1)")
    add("--out", type=Path, metavar="DIR", help=f"folder of data and runs (default: {OUT}/SIZE)")
    add("--dry-run", action="store_true", help="only print the commands of the trainings")
    options = parser.parse_args(argv)
    options.size = SIZES[options.size]
    options.out = program.from_root(options.out) or OUT / options.size.name
    options.command = ["python", "-m", "scripts.experiments.documents", *argv]
    return options


def runs(options) -> list[Run]:
    chosen = {key: getattr(options, key) for key in Run.DEFAULTS}
    rows = [BY_NAME[name] for name in options.rows]
    return [Run(options.size, row, seed, options.out, chosen) for seed in options.seeds for row in rows]


def train(options) -> int:
    if options.dry_run:
        for run in runs(options):
            print(f"\n# {run.name}", printed(training.train_command(run, options.max_update)), sep="\n")
        return 0
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise interruption.Stopped("all runs")

    say(f"+ {shlex.join(options.command)}")
    shared = Shared(options.jobs, say, check, (), tuple(options.command))
    failures = carry_out(
        runs(options),
        [None] * options.jobs,
        lambda run, _: training.train(run, options.max_update, shared),
        say,
        stop,
    )
    if failures:
        raise RecipeError("\n".join(f"{name} failed: {error}" for name, error in failures.items()))
    return 0


def main(argv: list[str]) -> int:
    options = parse(argv)

    def work() -> int:
        packages.require()
        if options.what == "prepare":
            corpus.prepare(options.size.corpus, options.out / "data")
            return 0
        return train(options)

    return program.run(work, "goes on")
