"""Trains, decodes and scores translation models."""

from __future__ import annotations

import argparse
import shlex
import shutil

from scripts.common import score
from scripts.common.folder import Folder, RecipeError
from scripts.common.progress import duration
from scripts.common.runner import gpus
from scripts.common.runner.experiment import Experiment
from scripts.common.runner.options import Parser
from scripts.common.runner.run import Work
from scripts.common.steps import Steps
from scripts.data import corpus

from . import commands
from .commands import Devices, Run

# A second score of some presets: its name in a record, and for the user.
SECOND = {"compound_split": "compounds split", "tokenised": "tokenised"}


class Translation(Experiment):
    """An experiment whose runs are translation models; its presets are of `preset.Preset`."""

    steps = ("train", "average", "generate", "bleu")
    diverging_is_a_result = True  # a loss that does not fall is recorded like any other

    def add_options(self, parser: Parser) -> None:
        if any(preset.distributed for preset in self.presets.values()):
            parser.add_argument(
                "--launcher",
                metavar="COMMAND",
                help="command that starts fairseq-train on several machines, with --world-size; see README.md",
            )
            parser.add_argument("--world-size", type=int, metavar="N", help="how many processes --launcher starts")

    def check_options(self, parser: Parser, given: argparse.Namespace) -> None:
        launcher = getattr(given, "launcher", None)
        if (launcher is None) != (getattr(given, "world_size", None) is None):
            parser.error("--launcher and --world-size go together")
        if launcher and (given.jobs > 1 or not given.preset.distributed):
            names = " or ".join(preset.name for preset in self.presets.values() if preset.distributed)
            parser.error(f"--launcher goes with --preset {names} and one job at a time")

    def make_run(self, given: argparse.Namespace, **common) -> Run:
        return Run(**common)

    def devices(self, given: argparse.Namespace) -> list[Devices]:
        found = gpus.chosen(given)
        if getattr(given, "launcher", None):
            return [Devices(found, given.world_size, tuple(shlex.split(given.launcher)))]
        gpus.require(given, found)
        return [Devices(share) for share in gpus.shares(found, given.jobs, given.preset.distributed)]

    def variables(self, devices: Devices) -> dict[str, str]:
        return devices.variables

    def describe(self, run: Run) -> list[str]:
        from fwp_fairseq.feature_maps import parameter_for

        row = run.row
        if not row.d_dot:
            return [row.update_rule or "-", "-"]
        parameters = parameter_for(row.feature_map, run.preset.d_key, row.d_dot)
        return [row.update_rule or "-", " ".join([f"d_dot={row.d_dot}", *(f"{k}={v}" for k, v in parameters.items())])]

    def explain(self, given: argparse.Namespace, run: Run, devices: Devices) -> str:
        """Says how an update's tokens are shared among devices and batches."""
        flags = commands.train_flags(run, devices)
        workers = "GPU" if devices.gpus or devices.launcher else "CPU process"
        return (
            f"an update: {devices.world} {workers}{'s' * (devices.world > 1)} x {flags['--update-freq']} batches x "
            f"{flags['--max-tokens']} tokens = {run.preset.tokens_per_update:,}, whatever the number of GPUs"
        )

    def commands(self, run: Run, devices: Devices) -> list[list[str]]:
        return commands.all_commands(run, devices)

    def prepare(self, given: argparse.Namespace) -> None:
        if given.preset.corpus == "multi30k":
            corpus.prepare(Steps(Folder(given.data, corpus.STEPS)))
        elif not (given.data / "bin/dict.de.txt").is_file():
            raise RecipeError(f"{given.data} has no prepared corpus: {self.preparation_of(given)}")

    def preparation_of(self, given: argparse.Namespace) -> str:
        """Returns what the user has to do for a corpus that is not prepared here."""
        raise NotImplementedError

    def configuration(self, run: Run, devices: Devices) -> dict:
        return commands.configuration(run, devices)

    def results(self, run: Run, devices: Devices, work: Work) -> list[dict]:
        decode, bleu, steps = commands.generate(run, devices), commands.all_bleu(run), work.steps

        def generate() -> dict:
            shutil.rmtree(run.generated.parent, ignore_errors=True)
            used = work.tool(decode, run.path / "generate.log")
            return {"seconds": used.seconds, "peak_mib": None if devices.gpus else used.peak_mib}

        def scores() -> dict:
            logs = ("bleu.log", "bleu_tokenised.log")
            found = [score.bleu(one, run.path / log, **work.options) for one, log in zip(bleu, logs, strict=False)]
            return {"scores": [one for several in found for one in several]}

        last = run.path / "checkpoints/checkpoint_last.pt"
        trained = work.train(commands.train(run, devices), last, strict=not self.diverging_is_a_result)
        if run.preset.average is not None:
            average = commands.average(run)
            work.run_tool("average", "average the last epochs", average, [run.checkpoint], run.path / "average.log")
        decoded = steps.run("generate", "translate the test set", decode, [run.generated], generate, decode)
        scored = steps.run("bleu", "score", bleu, [], scores, bleu[0])
        return [self.record(run, work, trained, decoded, scored["scores"])]

    def record(self, run: Run, work: Work, trained: dict, decoded: dict, scores: list[dict]) -> dict:
        second = scores[1] if len(scores) > 1 else None
        kinds = {"compound_split": run.preset.compound_split, "tokenised": run.preset.tokens is not None}
        more = {kind: second if has else None for kind, has in kinds.items()}
        return work.record(
            run.preset.table,
            trained,
            **run.row.recorded,
            valid_bleu=trained["valid_bleu"],
            **scores[0],
            **{f"bleu_{kind}": found and found["bleu"] for kind, found in more.items()},
            **{f"{kind}_signature": found and found["signature"] for kind, found in more.items()},
            decode_seconds=round(decoded["seconds"], 1),
            decode_peak_mib=decoded["peak_mib"] and round(decoded["peak_mib"]),
        )

    def summary(self, run: Run, found: list[dict]) -> list[str]:
        (record,) = found
        second = [kind for kind in SECOND if record[f"bleu_{kind}"] is not None]
        more = "".join(f", {SECOND[kind]} {record[f'bleu_{kind}']:.2f}" for kind in second)
        seconds = f"training {duration(record['train_seconds'])}, decoding {duration(record['decode_seconds'])}"
        signatures = [record[name] for name in ("signature", *(f"{kind}_signature" for kind in second))]
        return [f"BLEU {record['bleu']:.2f}{more} ({seconds})", *signatures]
