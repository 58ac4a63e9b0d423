"""The rows of a preset, those that are not recorded yet."""

from __future__ import annotations

import shlex
import sys
import threading

from scripts.common import interruption, packages, process, program
from scripts.common.commands import printed
from scripts.common.folder import RecipeError, refuse_path
from scripts.common.progress import on_terminal, write_above_bars
from scripts.common.sweep import Sweep, shares, sweep

from . import commands, data
from .arguments import HERE, OUT, RECORDS, parse
from .commands import Run
from .presets import WIKITEXT103
from .train_and_evaluate import FILE, recorded, train_and_evaluate


def gpus_of(options) -> list[tuple[int, ...]]:
    """The GPUs of each run at a time."""
    gpus = options.gpus
    if gpus is None:
        import torch

        gpus = () if options.cpu else tuple(range(torch.cuda.device_count()))
    if not gpus and not options.cpu and options.preset is WIKITEXT103:
        raise RecipeError("no GPU is visible; --preset wikitext103 takes years on a CPU: give --gpus 0,1,..., or --cpu")
    return shares(gpus, options.jobs, options.preset.distributed)


def runs_of(options) -> list[Run]:
    rows = [row for row in options.preset.rows if not options.rows or row.name in options.rows]
    return [
        Run(
            preset=options.preset,
            row=row,
            seed=seed,
            path=options.out / f"{row.name}-seed{seed}",
            data=options.data or options.out / "data",
            more=options.more,
        )
        for seed in options.seeds  # all rows come before a second seed
        for row in rows
    ]


def list_rows(options, runs: list[Run]) -> None:
    own, project = recorded(options.out / FILE), recorded(process.ROOT / RECORDS)
    for run in runs:
        row = run.row
        what = f"{row.update_rule or 'softmax':<8}{f'd_dot={row.d_dot}' if row.d_dot else '-':<10}{row.state:<8}"
        state = "recorded" if run.key in own else "begun" if run.path.exists() else "not run"
        if run.key in project:
            state += f"; {RECORDS.parent} has it"
        print(f"{run.name:<44}{what}{state}")


def reproduce(options) -> int:
    packages.require()
    runs = runs_of(options)
    if options.list:
        list_rows(options, runs)
        return 0
    files = (options.out / FILE, *([process.ROOT / RECORDS] if options.record else []))
    # The last file decides: a fresh clone's own folder is empty and must not make it repeat what the project has.
    known = recorded(files[-1])
    missing = [run for run in runs if run.key not in known]
    corpus = options.preset.corpus
    if options.dry_run:
        print(f"# text: {data.CORPORA[corpus].what}\n{printed(data.preprocess(corpus, runs[0].data))}")
        gpus = gpus_of(options)[0]
        for run in missing:
            print(f"\n# {run.name}")
            for command in commands.all_of(run, gpus):
                print(printed(command))
        return 0
    for path in (options.out, runs[0].data):
        refuse_path(path)
    if options.prepare:
        data.prepare(corpus, runs[0].data)
        return 0
    gpus = gpus_of(options)
    if options.record:
        from scripts.results import records

        records.require_commit()
    say = write_above_bars
    say(f"+ {shlex.join(options.command)}")
    if len(missing) < len(runs):
        say(f"{len(runs) - len(missing)} of {len(runs)} runs are recorded and skipped")
    if not missing:
        return 0
    for run in missing:
        commands.streams_of_a_process(run.size, gpus[0])
    data.prepare(corpus, runs[0].data)
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise interruption.Stopped("the sweep")

    shared = Sweep(len(gpus), say, check, on_terminal(), files, tuple(options.command))
    failures = sweep(missing, gpus, lambda run, where, slot: train_and_evaluate(run, where, shared, slot), say, stop)
    for name, error in failures.items():
        print(f"\n{name} failed: {error}", file=sys.stderr)
    if failures:
        names = ", ".join(failures)
        print(f"\nerror: {len(failures)} of {len(missing)} runs failed: {names}", file=sys.stderr)
    return 1 if failures else 0


def main(argv: list[str]) -> int:
    options = parse(argv)
    options.command = [str(HERE / "run.py"), *argv]
    for name in ("out", "data"):
        path = getattr(options, name)
        if path is not None:
            setattr(options, name, program.from_root(path))
    options.out = options.out or OUT / options.preset.name
    return program.run(lambda: reproduce(options), "continues (a training from its last checkpoint)")
