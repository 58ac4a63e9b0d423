"""Runs the rows of a preset that are not recorded yet."""

from __future__ import annotations

import shlex

from scripts.common.folder import RecipeError
from scripts.common.steps import Steps
from scripts.common.sweep import gpus
from scripts.common.sweep.parallel import Sweep
from scripts.common.sweep.recipe import Recipe
from scripts.data import corpus

from . import arguments, commands
from .commands import Devices, Run
from .train_and_score import train_and_score


class BleuVsDDot(Recipe):
    here, out, records = arguments.HERE, arguments.OUT, arguments.RECORDS
    how_to_go_on = "continues (a training from its last epoch)"

    def parse(self, argv: list[str]):
        return arguments.parse(argv)

    def make_run(self, options, **common) -> Run:
        return Run(**common, choices=options.choices)

    def devices(self, options) -> list[Devices]:
        found = gpus.chosen(options)
        if options.launcher:
            return [Devices(found, options.world_size, tuple(shlex.split(options.launcher)))]
        gpus.require(options, found)
        return [Devices(share) for share in gpus.shares(found, options.jobs, options.preset.distributed)]

    def describe(self, run: Run) -> list[str]:
        from fwp_fairseq.feature_maps import parameter_for

        row = run.row
        parameters = parameter_for(row.feature_map, run.preset.d_key, row.d_dot) if row.d_dot else {}
        width = " ".join([f"d_dot={row.d_dot}", *(f"{name}={value}" for name, value in parameters.items())])
        return [row.update_rule or "-", width if row.d_dot else "-"]

    def explain(self, options, run: Run, devices: Devices) -> str:
        """Says how an update's tokens are shared among devices and batches."""
        flags = commands.train_flags(run, devices)
        workers = "GPU" if devices.gpus or devices.launcher else "CPU process"
        return (
            f"an update: {devices.world} {workers}{'s' * (devices.world > 1)} x {flags['--update-freq']} batches x "
            f"{flags['--max-tokens']} tokens = {run.preset.tokens_per_update:,}, whatever the number of GPUs"
        )

    def commands(self, run: Run, devices: Devices) -> list[list[str]]:
        return commands.all_commands(run, devices)

    def prepare(self, options) -> None:
        data = options.data
        if options.preset.corpus == "multi30k":
            corpus.prepare(Steps(len(corpus.STEPS)), data, options.preset.joined)
        elif not (data / "bin/dict.de.txt").is_file():
            prepare = f"{self.here}/prepare.sh --preset {options.preset.corpus}"
            raise RecipeError(f"{data} has no prepared corpus: run {prepare} --out {data}")

    def carry_out(self, run: Run, devices: Devices, sweep: Sweep, slot: int) -> dict:
        return train_and_score(run, devices, sweep, slot)


def main(argv: list[str]) -> int:
    return BleuVsDDot().main(argv)
