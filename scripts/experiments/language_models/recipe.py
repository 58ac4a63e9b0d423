"""The paper's language models: Tables 2 to 5 of Schlag et al. 2021 at one of several scales."""

import json
import math

from fwp_fairseq.text import duration
from scripts.common.commands import as_run
from scripts.common.errors import RecipeError
from scripts.common.runner.call import Call
from scripts.common.runner.experiment import Experiment
from scripts.common.runner.gpus import Gpus
from scripts.common.runner.work import Work

from . import commands, data
from .commands import EVALUATED, LanguageModelRun
from .presets import PRESETS
from .rows import MEASURES

FOUND = ("bits_per_token", "perplexity", "word_perplexity", "tokens", "words")


class LanguageModels(Experiment):
    name, file, presets = "language_models", "language_models.jsonl", PRESETS
    run_type = LanguageModelRun
    steps = ("train", *EVALUATED)
    own_flags = (*Experiment.own_flags, "--batch-size", "--max-sentences")
    goes_on = "a training goes on from its last checkpoint"
    description = """\
Language models with fast weights: prepares the text, then trains, evaluates and records the rows of Tables 2 to 5 of
Schlag et al. 2021, at one of three scales.

  --preset tinyshakespeare --jobs 2    all rows on characters, two at a time; each takes minutes
  --preset wikitext103 --gpus 0,1      the paper's own experiment; each row takes days
  --preset tinyshakespeare --dry-run   what is not done yet, with its commands
"""

    def preparation(self, call: Call) -> list[list[str]]:
        return [data.preprocess(call.preset.corpus, call.data)]

    def commands(self, run: LanguageModelRun, devices: Gpus) -> list[list[str]]:
        return commands.all_commands(run, devices)

    def prepare(self, call: Call) -> None:
        data.prepare(call.preset.corpus, call.data)

    def configuration(self, run: LanguageModelRun, devices: Gpus) -> dict:
        return commands.configuration(run)

    def results(self, run: LanguageModelRun, devices: Gpus, work: Work) -> list[dict]:
        trained = work.train(commands.train(run, devices), run.checkpoint)
        evaluated = {split: _evaluated(run, devices, work, split) for split in EVALUATED}
        peaks = [evaluation["peak_mib"] for evaluation in evaluated.values()]
        record = work.record(
            "language_models",
            trained,
            positions=run.row.positions,
            state=run.row.state,
            state_numbers=run.state_numbers,
            **{split: {name: evaluated[split][name] for name in FOUND} for split in EVALUATED},
            eval_seconds=round(sum(evaluation["seconds"] for evaluation in evaluated.values()), 1),
            eval_peak_mib=None if None in peaks else round(max(peaks)),
            recipe=work.configuration,
            eval_commands=[evaluated[split]["command"] for split in EVALUATED],
        )
        return [record]

    def summary(self, run: LanguageModelRun, results: list[dict]) -> list[str]:
        (record,) = results
        field, measure = MEASURES[run.preset.name]
        values = ", ".join(f"{split} {record[split][field]:.3f}" for split in EVALUATED)
        seconds = f"training {duration(record['train_seconds'])}, evaluation {duration(record['eval_seconds'])}"
        return [f"{measure}: {values} ({seconds})"]


def _evaluated(run: LanguageModelRun, gpus: Gpus, work: Work, split: str) -> dict:
    """Evaluates one part of the text unless that is done."""
    command, log = commands.evaluate(run, split, gpus), run.log(split)

    def evaluate() -> dict:
        used = work.tool(command, log)
        peak = None if gpus else used.peak_mib
        return _score(run, split, work) | {"seconds": used.seconds, "peak_mib": peak}

    # A run that began without a GPU may continue with one.
    inputs = [word for word in command if word != "--cpu"]
    evaluation = work.folder.run(split, f"evaluate on {split}", inputs, [log], evaluate, command)
    return evaluation | {"command": as_run(command)}


def _score(run: LanguageModelRun, split: str, work: Work) -> dict:
    log = run.path / f"{split}-ppl.log"
    work.tool(commands.perplexity(run, split), log)
    measures = json.loads(log.read_text(encoding="utf-8").strip().splitlines()[-1])
    if not math.isfinite(measures["bits_per_token"]):
        raise RecipeError(f"{run.log(split)}: the loss is not a number: {measures['bits_per_token']}")
    return {name: measures[name] for name in FOUND}


EXPERIMENT = LanguageModels()
