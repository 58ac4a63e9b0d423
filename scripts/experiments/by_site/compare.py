"""Compares rows that are finished with a baseline, seed by seed, by sacreBLEU's paired bootstrap.

  python -m scripts.experiments.by_site.compare --preset sites --rows dpfp-dpfp-dpfp --seeds 1 2 3

The translations are those of the experiment, which must have run both rows with each seed. p is the probability of a
difference at least as large if both systems were equally good.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.common import program, records, score
from scripts.common.folder import RecipeError
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
    command += ["--references", str(run.reference), "--paired-bs", "--paired-n", str(SAMPLES)]
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


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.experiments.by_site.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--preset", required=True, choices=list(EXPERIMENT.presets), help="of the experiment")
    add("--rows", required=True, nargs="+", metavar="ROW", help="rows to compare with the baseline")
    add("--baseline", metavar="ROW", help="default: the preset's first row, which has softmax attention")
    add("--seeds", nargs="+", type=int, default=[1], metavar="N", help="default: 1")
    add("--out", type=Path, metavar="DIR", help="folder of the runs (default: runs/by_site/PRESET)")
    add("--record", action="store_true", help=f"also append to {RECORDS}; needs a checkout without local changes")
    options = parser.parse_args()
    preset = EXPERIMENT.presets[options.preset]
    rows = {row.name: row for row in preset.rows}
    baseline = options.baseline or preset.rows[0].name
    for name in (baseline, *options.rows):
        if name not in rows:
            parser.error(f"{name}: expected one of {', '.join(rows)}")
    out = program.from_root(options.out) or Path("runs/by_site") / preset.name

    def make(name: str, seed: int) -> Run:
        return Run(preset, rows[name], seed, out / f"{name}-seed{seed}", out / "data")

    def work() -> None:
        if options.record:
            records.require_commit()
        for name in options.rows:
            for seed in options.seeds:
                found = paired(make(baseline, seed), make(name, seed))
                print(
                    f"{name} seed {seed}: BLEU {found['bleu']:.2f}, {baseline} {found['baseline_bleu']:.2f}, "
                    f"p = {found['p']:.3f}",
                    flush=True,
                )
                if options.record:
                    records.append(RECORDS, {**found, "environment": records.environment()})

    return program.run(work, "does all comparisons again")


if __name__ == "__main__":
    sys.exit(main())
