"""Runs the rows of a preset that are not recorded yet."""

from __future__ import annotations

from scripts.common.sweep import gpus
from scripts.common.sweep.parallel import Sweep
from scripts.common.sweep.recipe import Recipe

from . import arguments, commands, data
from .commands import Run
from .train_and_evaluate import train_and_evaluate


class LanguageModels(Recipe):
    here, out, records = arguments.HERE, arguments.OUT, arguments.RECORDS
    how_to_go_on = "continues (a training from its last checkpoint)"

    def parse(self, argv: list[str]):
        return arguments.parse(argv)

    def make_run(self, options, **common) -> Run:
        return Run(**common)

    def devices(self, options) -> list[tuple[int, ...]]:
        found = gpus.chosen(options)
        gpus.require(options, found)
        return gpus.shares(found, options.jobs, options.preset.distributed)

    def describe(self, run: Run) -> list[str]:
        row = run.row
        return [row.update_rule or "softmax", f"d_dot={row.d_dot}" if row.d_dot else "-", row.state]

    def explain(self, options, run: Run, devices: tuple[int, ...]) -> str:
        """Says what is read, and how the streams of an update are shared among GPUs."""
        world, batch = max(1, len(devices)), commands.streams_of_a_process(run.size, devices)
        workers = f"{world} {'GPU' if devices else 'CPU process'}{'s' * (world > 1)}"
        return (
            f"text: {data.CORPORA[run.preset.corpus].what}; an update: {workers} x {batch} streams x "
            f"{run.size.length} tokens"
        )

    def preparation(self, options) -> list[list[str]]:
        return [data.preprocess(options.preset.corpus, options.data)]

    def commands(self, run: Run, devices: tuple[int, ...]) -> list[list[str]]:
        return commands.all_commands(run, devices)

    def prepare(self, options) -> None:
        data.prepare(options.preset.corpus, options.data)

    def carry_out(self, run: Run, devices: tuple[int, ...], sweep: Sweep, slot: int) -> dict:
        return train_and_evaluate(run, devices, sweep, slot)


def main(argv: list[str]) -> int:
    return LanguageModels().main(argv)
