"""Compares rows that are finished with softmax attention, seed by seed, by sacreBLEU's paired bootstrap.

  python -m scripts.experiments.by_site.compare --preset sites --rows dpfp-dpfp-dpfp --seeds 1 2 3

The translations are those of the experiment, which must have run both rows with each seed. p is the probability of a
difference at least as large if both systems were equally good.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from scripts.common import program, records, score
from scripts.common.arguments import Parser
from scripts.common.folder import RecipeError
from scripts.common.runner.options import finished
from scripts.translation.commands import Run

from .recipe import EXPERIMENT

RECORDS = Path("benchmarks/results/paired.jsonl")
SAMPLES = 1000


def paired(baseline: Run, run: Run) -> dict:
    """Returns the record of one comparison, without the environment. Raises RecipeError if a row is not finished."""
    for one in (baseline, run):
        if not one.generated.is_file():
            made = f"--preset {one.preset.name} --rows {one.row.name} --seeds {one.seed}"
            raise RecipeError(f"{one.generated}: no such file; python -m scripts.experiments by_site {made} makes it")
    command = ["fwp", "bleu", "--hypotheses", str(baseline.generated), str(run.generated)]
    command += ["--references", str(run.reference), "--paired-bs", "--paired-bs-n", str(SAMPLES)]
    first, second = score.paired(command, run.path / "paired.log")
    return {
        "table": "paired_bootstrap",
        "preset": run.preset.name,
        "row": run.row.name,
        "baseline": baseline.row.name,
        "seed": run.seed,
        "bleu": round(second["score"], 2),
        "baseline_bleu": round(first["score"], 2),
        "p": round(second["p_value"], 4),
        "signature": second["signature"],
        "command": command,
    }


def main(argv: list[str]) -> int:
    parser = Parser("python -m scripts.experiments.by_site.compare", __doc__, "", "--rows ROW [ROW ...] [OPTIONS]")
    given = finished(parser, argv, EXPERIMENT)

    def compare() -> None:
        if given.record:
            records.require_commit()
        for run in given.runs:
            softmax = given.preset.rows[0]  # softmax attention at all sites
            baseline = replace(run, row=softmax, path=run.path.with_name(f"{softmax.name}-seed{run.seed}"))
            found = paired(baseline, run)
            theirs = f"{baseline.row.name} {found['baseline_bleu']:.2f}"
            print(f"{run.name}: BLEU {found['bleu']:.2f}, {theirs}, p = {found['p']:.3f}", flush=True)
            if given.record:
                records.append(RECORDS, {**found, "environment": records.environment()})

    return program.run(compare, "does all comparisons again")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
