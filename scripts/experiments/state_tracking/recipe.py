"""State tracking: which fast nets learn the parity of the bits that they have read so far."""

from scripts.common.runner.call import Call
from scripts.common.runner.experiment import Experiment
from scripts.common.runner.preset import Preset
from scripts.common.runner.run import Run
from scripts.common.runner.work import Work

from .rows import MOST_STEPS, ROWS

PARITY = Preset(name="parity", rows=ROWS)


class StateTracking(Experiment):
    name, file, presets = "state_tracking", "parity.jsonl", {PARITY.name: PARITY}
    description = """\
State tracking: trains each kind of fast net to say of random bits, after each of them, whether there were an odd number
of ones; see training.py. All rows with three seeds take about ten minutes on one core.

  --seeds 1 2 3
"""
    goes_on = "a model whose training was stopped is trained anew"
    own_flags = None

    def devices(self, call: Call) -> list:
        return [()] * call.jobs  # its models are too small for a GPU

    def configuration(self, run: Run, devices) -> dict:
        return {"name": run.row.name, "seed": run.seed, "most_steps": MOST_STEPS}

    def results(self, run: Run, devices, work: Work) -> list[dict]:
        return [work.call("scripts.experiments.state_tracking.training", work.configuration)]

    def summary(self, run: Run, results: list[dict]) -> list[str]:
        (record,) = results
        return [
            f"{record['stop']} after {record['steps']} updates, accuracy {record['accuracy']:.4f}, on longer sequences "
            f"{record['long_accuracy']:.4f}, {record['cpu_seconds']:.0f} s"
        ]

    def key(self, record: dict) -> tuple:
        return record["model"], record["seed"], record["most_steps"]

    def key_of(self, run: Run) -> tuple:
        return run.row.name, run.seed, MOST_STEPS


EXPERIMENT = StateTracking()
