"""The program of an experiment: runs the rows of a table that are not recorded yet, some of them at a time."""

import shlex
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from fwp_fairseq.cli.commands import say
from fwp_fairseq.cli.processes import environment

from .. import process, program, records
from ..arguments import Parser
from ..commands import printed
from ..folder import Folder
from . import call as options
from .call import Call
from .experiment import Experiment
from .parallel import carry_out
from .run import Run
from .work import Work

_GO_ON = "Interrupted, the same command continues: finished steps are kept, recorded rows are skipped, and\n{}.\n"


def _parse(experiment: Experiment, argv: list[str]) -> Call:
    theirs = "" if experiment.own_flags is None else "FAIRSEQ-TRAIN-FLAGS"
    description = f"{experiment.description}\n{_GO_ON.format(experiment.goes_on)}"
    parser = Parser(
        f"python -m scripts.experiments {experiment.name}", description, theirs, usage="--preset PRESET [OPTIONS]"
    )
    options.add_options(parser, experiment.presets, experiment.folder_of("PRESET"), experiment.record_file)
    if experiment.compared:
        what = "only compare finished rows with this one, by paired bootstrap"
        parser.add_argument("--compare", metavar="ROW", help=what)
    experiment.add_options(parser)
    call = options.parse(parser, argv, experiment.presets, experiment.own_flags)
    experiment.check_options(parser, call)
    call.command = ["python", "-m", "scripts.experiments", experiment.name, *argv]
    call.out = program.from_root(call.out) or experiment.folder_of(call.preset.name)
    call.data = program.from_root(call.data) or call.out / "data"
    return call


def main(experiment: Experiment, argv: list[str]) -> int:
    """Parses the command line and runs what it says; returns the exit status."""
    call = _parse(experiment, argv)
    return program.run(lambda: reproduce(experiment, call), f"continues: {experiment.goes_on}")


def reproduce(experiment: Experiment, call: Call) -> int:
    """Carries out a call; returns the exit status."""
    runs = experiment.runs(call)
    if on_finished := experiment.on_finished(call):
        return _on_finished(call, runs, *on_finished)
    if call.prepare and not call.dry_run:
        experiment.prepare(call)
        return 0
    files = (call.out / experiment.file, *([process.ROOT / experiment.record_file] if call.record else []))
    # The last file says which runs are done. With --record it is the project's: a fresh clone, whose own folder is
    # empty, must not repeat these runs.
    keys = experiment.recorded(files[-1])
    missing = [run for run in runs if experiment.key_of(run) not in keys]
    devices = experiment.devices(call)
    for run in () if call.record else runs:  # records do not have all settings, its folder has
        if run not in missing and run.path.is_dir():
            Folder(run.path, experiment.steps).claim(experiment.configuration(run, devices[0]))
    commands = {run.name: experiment.commands(run, devices[0]) for run in missing}
    known = f"{len(runs) - len(missing)} of {len(runs)} runs are recorded already ({files[-1]})"
    if call.dry_run:
        first = [f"# {known}", *map(printed, experiment.preparation(call))]
        blocks = [first, *([f"# {name}", *map(printed, lines)] for name, lines in commands.items())]
        print("\n\n".join("\n".join(block) for block in blocks))
        return 0
    if call.record:
        records.require_commit()
    say(f"+ {shlex.join(call.command)}")
    if len(missing) < len(runs):
        say(known)
    if not missing:
        return 0
    experiment.prepare(call)
    return _carry_out(experiment, missing, devices, files, tuple(call.command))


def _on_finished(call: Call, runs: list[Run], path: Path, act: Callable) -> int:
    if call.record:
        records.require_commit()
    gpu = {"gpu": None} if call.cpu else {}
    own = {"command": shlex.join(call.command), "environment": records.environment() | gpu}
    for run in runs:
        lines, results = act(run)
        for line in lines:
            say(f"{run.name}: {line}")
        _note_checkout(run, call.record)
        for file in (call.out / path.name, *([path] if call.record else [])):
            records.append(file, *({**record, **own} for record in results))
    return 0


def _note_checkout(run: Run, record: bool) -> None:
    """Notes what code works on a run. With ``record``, raises ValueError if any was not that of a commit."""
    for checkout in records.checkouts(run.path / "checkouts.json"):
        if record:
            records.require_commit(checkout)


def _carry_out(
    experiment: Experiment, runs: list[Run], devices: list, files: tuple[Path, ...], command: tuple[str, ...]
) -> int:
    """Carries out the runs and reports those that failed; returns the exit status."""
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise program.Stopped("all runs")

    def do(run: Run, where) -> None:
        folder = Folder(run.path, experiment.steps, lambda text: say(f"{run.name}: {text}"), check)
        variables = environment(len(devices)) | experiment.variables(where)
        configuration = experiment.configuration(run, where)
        _carry_out_one(experiment, Work(run, folder, configuration, variables, command), where, files)

    failures = carry_out(runs, devices, do, say, stop)
    for name, error in failures.items():
        print(f"\n{name} failed: {error}", file=sys.stderr)
    if failures:
        names = ", ".join(failures)
        print(f"\nerror: {len(failures)} of {len(runs)} runs failed: {names}", file=sys.stderr)
    return 1 if failures else 0


def _carry_out_one(experiment: Experiment, work: Work, devices, files: tuple[Path, ...]) -> None:
    """Carries out one run. Raises RecipeError if a tool fails or another process works on the same run."""
    with work.folder.locked():
        work.folder.claim(work.configuration)
        _note_checkout(work.run, record=len(files) > 1)
        results = experiment.results(work.run, devices, work)
        for path in files:
            records.append(path, *results, key=experiment.key)
    for line in experiment.summary(work.run, results):
        work.say(line)
