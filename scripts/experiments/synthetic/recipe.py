"""The synthetic retrieval task of Schlag et al. 2021, Sec. 6.1: capacity, and update rules."""

from dataclasses import asdict
from pathlib import Path

from fwp_fairseq.text import duration
from scripts.common.runner.experiment import Experiment
from scripts.common.runner.preset import Preset
from scripts.common.runner.run import Run
from scripts.common.runner.work import Work

from .rows import QUICK, points

PRESETS = {
    f"{name}{suffix}": Preset(name=f"{name}{suffix}", rows=points(setting, sizes))
    for setting, name in ((1, "capacity"), (2, "update-rules"))
    for suffix, sizes in (("", None), ("-quick", QUICK[setting]))
}


class Synthetic(Experiment):
    name, file, presets = "synthetic", "synthetic.jsonl", PRESETS
    description = """\
The synthetic retrieval task of Schlag et al. 2021: trains one model for each kind of attention and number of keys S,
until its evaluation loss is at most 0.001 or has not improved for 1100 steps. A row is named KIND_S.

  --preset capacity-quick --jobs 2        S keys without replacement, the sum rule, eight maps (Sec. 6.1.1, Figure 2);
                                          a thinned grid, 20 minutes on 2 cores
  --preset update-rules-quick --jobs 2    2S pairs of S keys with replacement, so that keys get new values (Sec. 6.1.2,
                                          Figure 3); 20 minutes on 2 cores
  --preset capacity, update-rules         the whole grids
  --rows 'elu_*' --seeds 1 2 3            some models

fwm is the fast weight memory of Schlag, Munkhdalai and Schmidhuber 2021; gated is the rule of Peng et al. 2021, for
which the paper has no result.
"""
    goes_on = "a model whose training was stopped is trained anew"
    own_flags = None

    def folder_of(self, preset: str) -> Path:
        return super().folder_of(preset.removesuffix("-quick"))

    def configuration(self, run: Run, devices) -> dict:
        return asdict(run.row) | {"seed": run.seed}

    def results(self, run: Run, devices, work: Work) -> list[dict]:
        device = "cuda" if devices else "cpu"
        return [work.call("scripts.experiments.synthetic.training", work.configuration | {"device": device})]

    def summary(self, run: Run, results: list[dict]) -> list[str]:
        (record,) = results
        best = "no finite loss" if record["best_loss"] is None else f"loss {record['best_loss']:.4f}"
        return [f"{best}, {record['stop']} after {record['steps']} steps, {duration(record['seconds'])}"]

    def key(self, record: dict) -> tuple:
        return record["setting"], record["model"], record["S"], record["seed"]

    def key_of(self, run: Run) -> tuple:
        return run.row.setting, run.row.model, run.row.S, run.seed


EXPERIMENT = Synthetic()
