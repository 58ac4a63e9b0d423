"""Runs the rows of a preset that are not recorded yet."""

from __future__ import annotations

import shlex
import sys
import threading

from scripts.common import interruption, packages, process, program
from scripts.common.commands import printed
from scripts.common.folder import RecipeError, refuse_path
from scripts.common.progress import on_terminal, write_above_bars
from scripts.common.steps import Steps
from scripts.common.sweep import Sweep, shares, sweep
from scripts.data import corpus
from scripts.results.rows import D_KEY

from . import commands
from .arguments import HERE, OUT, RECORDS, parse
from .commands import Devices, Run
from .presets import WMT14
from .train_and_score import FILE, recorded, train_and_score


def devices_of(options) -> list[Devices]:
    """Returns the devices of each of the runs that go on at a time."""
    gpus = options.gpus
    if gpus is None:
        import torch

        gpus = () if options.cpu else tuple(range(torch.cuda.device_count()))
    if not gpus and not options.cpu and not options.launcher and options.preset is WMT14:
        raise RecipeError("no GPU is visible, and --preset wmt14 takes years on a CPU: set --gpus 0,1,..., or --cpu")
    if options.launcher:
        return [Devices(gpus, options.world_size, tuple(shlex.split(options.launcher)))]
    return [Devices(share) for share in shares(gpus, options.jobs, options.preset.distributed)]


def runs_of(options) -> list[Run]:
    rows = [row for row in options.preset.rows if not options.rows or row.name in options.rows]
    return [
        Run(
            preset=options.preset,
            row=row,
            seed=seed,
            path=options.out / f"{row.name}-seed{seed}",
            data=options.data or options.out / "data",
            choices=options.choices,
            more=options.more,
        )
        for seed in options.seeds  # all rows of one seed come before the next seed
        for row in rows
    ]


def explain_batch(options, devices: Devices) -> str:
    """Returns a line that says how an update's tokens are shared among devices and batches."""
    preset = options.preset
    flags = commands.train_flags(runs_of(options)[0], devices)
    workers = "GPU" if devices.gpus or devices.launcher else "CPU process"
    return (
        f"an update: {devices.world} {workers}{'s' * (devices.world > 1)} x {flags['--update-freq']} batches x "
        f"{flags['--max-tokens']} tokens = {preset.tokens_per_update:,}, whatever the number of GPUs"
    )


def list_rows(options, runs: list[Run]) -> None:
    from fwp_fairseq.feature_maps import parameter_for

    own, project = recorded(options.out / FILE), recorded(process.ROOT / RECORDS)
    for run in runs:
        row = run.row
        parameters = parameter_for(row.feature_map, D_KEY, row.d_dot) if row.d_dot else {}
        width = " ".join([f"d_dot={row.d_dot}", *(f"{name}={value}" for name, value in parameters.items())])
        state = "recorded" if run.key in own else "begun" if run.path.exists() else "not run"
        if run.key in project:
            state += f"; {RECORDS.parent} has it"
        print(f"{run.name:<24}{row.update_rule or '-':<7}{width if row.d_dot else '-':<22}{state}")


def reproduce(options) -> int:
    packages.require()
    preset = options.preset
    runs = runs_of(options)
    if options.list:
        list_rows(options, runs)
        return 0
    files = (options.out / FILE, *([process.ROOT / RECORDS] if options.record else []))
    # The last file says which runs are done. With --record it is the project's: a fresh clone, whose own
    # folder is empty, must not repeat these runs.
    known = recorded(files[-1])
    missing = [run for run in runs if run.key not in known]
    devices = devices_of(options)
    if options.dry_run:
        print(f"# {explain_batch(options, devices[0])}")
        for run in missing:
            print(f"\n# {run.name}")
            for command in commands.all_commands(run, devices[0]):
                print(printed(command))
        return 0
    if options.record:
        from scripts.results import records

        records.require_commit()
    say = write_above_bars
    say(f"+ {shlex.join(options.command)}")
    say(explain_batch(options, devices[0]))
    if len(missing) < len(runs):
        say(f"{len(runs) - len(missing)} of {len(runs)} runs are recorded already and skipped")
    if not missing:
        return 0
    for path in (options.out, missing[0].data):
        refuse_path(path)
    if preset.corpus == "multi30k":
        corpus.prepare(Steps(len(corpus.STEPS)), missing[0].data)
    elif not (missing[0].data / "bin/dict.de.txt").is_file():
        raise RecipeError(f"{missing[0].data} has no prepared corpus: run {HERE}/prepare.sh --out {missing[0].data}")

    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise interruption.Stopped("the sweep")

    shared = Sweep(len(devices), say, check, on_terminal(), files, tuple(options.command))
    failures = sweep(missing, devices, lambda run, where, slot: train_and_score(run, where, shared, slot), say, stop)
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
    return program.run(lambda: reproduce(options), "continues (a training from its last epoch)")
