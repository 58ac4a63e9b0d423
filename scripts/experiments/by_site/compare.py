"""Compares rows that are finished with a baseline, seed by seed, by sacreBLEU's paired bootstrap.

  python -m scripts.experiments.by_site.compare --preset sites --rows dpfp-dpfp-dpfp --seeds 1 2 3

The translations are those of the experiment, which must have run both rows with each seed. p is the probability of a
difference at least as large if both systems were equally good.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

from scripts.common import program, records, score
from scripts.common.arguments import Parser
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


def main(argv: list[str]) -> int:
    parser = Parser("python -m scripts.experiments.by_site.compare", __doc__, "", "--rows ROW [ROW ...] [OPTIONS]")
    add = parser.add_argument
    add("--preset", default="sites", choices=list(EXPERIMENT.presets), help="of the experiment (default: sites)")
    add("--rows", required=True, nargs="+", metavar="ROW", help="rows to compare with the baseline")
    add("--baseline", default="softmax-softmax-softmax", metavar="ROW", help="(default: %(default)s)")
    add("--seeds", nargs="+", type=int, default=[1], metavar="N", help="default: 1")
    add("--out", type=Path, metavar="DIR", help="folder of the runs (default: runs/by_site/PRESET)")
    add("--record", action="store_true", help=f"also append to {RECORDS}; needs a checkout without local changes")
    given = parser.parse_args(argv)
    preset = EXPERIMENT.presets[given.preset]
    rows = {row.name: row for row in preset.rows}
    for name in (given.baseline, *given.rows):
        if name not in rows:
            parser.error(f"{name}: expected one of {', '.join(rows)}")
    out = program.from_root(given.out) or Path("runs/by_site") / preset.name

    def compare() -> None:
        if given.record:
            records.require_commit()
        for name, seed in product(given.rows, given.seeds):
            baseline, run = (
                Run(preset, rows[row], seed, out / f"{row}-seed{seed}", out / "data") for row in (given.baseline, name)
            )
            found = paired(baseline, run)
            theirs = f"{given.baseline} {found['baseline_bleu']:.2f}"
            print(f"{name} seed {seed}: BLEU {found['bleu']:.2f}, {theirs}, p = {found['p']:.3f}", flush=True)
            if given.record:
                records.append(RECORDS, {**found, "environment": records.environment()})

    return program.run(compare, "does all comparisons again")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
