"""The quick start: trains a small English-German Transformer, converts it to fast weights, and measures both.

scripts/quickstart.sh sets up the environment and calls it.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from fwp_fairseq.tables.table import grid
from scripts.common import program, records
from scripts.common.arguments import Parser
from scripts.data.corpus import SMOKE_SENTENCES, VOCABULARY
from scripts.translation import commands
from scripts.translation.experiment import Translation

from ..conversion import rows as conversions
from ..conversion.recipe import EXPERIMENT as CONVERSION
from ..conversion.table import TABLES as CONVERTED
from .rows import BASELINE, HYBRID, QUICKSTART, SMOKE
from .table import TABLES

PROGRAM = "scripts/quickstart.sh"
OUT = Path("runs/quickstart")
DESCRIPTION = f"""\
Trains a small English-German Transformer on Multi30k, converts it to fast-weight attention, decodes test_2016_flickr
with both models (beam {QUICKSTART.decoding["--beam"]}), and prints detokenised, cased sacreBLEU with the speed and the
memory of decoding. Sets up everything it needs. The same command skips finished steps and resumes an interrupted
training."""
EPILOG = f"""\
steps: .venv, corpus, {VOCABULARY} joint BPE pieces, fairseq-preprocess,
{QUICKSTART.training["--max-update"]} updates of fairseq-train with softmax attention, fwp average, fairseq-generate,
fwp bleu; then those of the experiment conversion: fwp convert, fairseq-train, and the same measurements. Every command
is printed before it runs and can be copied.

results, below runs/quickstart (or --out):
  data/                      text, BPE model, binarised corpus: shared by all models
  NAME-seedN/checkpoints/    of fairseq-train, and the average of the last epochs
  NAME-seedN/*.log           the whole output of the tools
  *.jsonl                    the scores, and how they were obtained
NAME is baseline for the softmax model and hybrid with --from-scratch. The converted model is in window-seedN/finetuned,
before fine-tuning in window-seedN/converted.

examples:
  scripts/quickstart.sh                     a softmax model, and the same model converted to fast weights
  scripts/quickstart.sh --baseline          the softmax model alone
  scripts/quickstart.sh --from-scratch      fast weights from the beginning
  scripts/quickstart.sh --texts corpus --source en --target de --out runs/en-de
                                            a hybrid on texts of your own, by `fwp train`, which has other options

environment variables: FWP_DATA (folder with multi30k/, default ../shared/data; without it the data is downloaded),
OMP_NUM_THREADS (default: all cores, 8 at most), and those of scripts/environment.sh."""


def parse(argv: list[str]) -> argparse.Namespace:
    """Returns the options of an experiment, with ``convert``.

    quickstart.sh calls this before anything is installed, so this module may import the standard library alone.
    """
    usage = "[--baseline | --from-scratch] [--smoke] [--record] [--seed N] [--cpu] [--out DIR] [--help]"
    parser = Parser(PROGRAM, DESCRIPTION, "", usage, epilog=EPILOG)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--baseline", action="store_true", help="train the softmax model alone, and convert nothing")
    one.add_argument(
        "--from-scratch", action="store_true", help=f"train {HYBRID.recorded['arch']} instead, from the beginning"
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help=f"do the same steps in under 3 minutes: {SMOKE.training['--max-update']} updates and {SMOKE_SENTENCES} "
        "sentences; fails if the loss does not fall",
    )
    parser.add_argument("--record", action="store_true", help="also append the records to benchmarks/results")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of initialisation, order, dropout (1)")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder (default: runs/quickstart)")
    given = parser.parse_args(argv)
    if given.record and given.smoke:
        parser.error("--record and --smoke: a smoke run is not a result")
    parser.require_least("--seed", given.seed, 0)
    row = HYBRID if given.from_scratch else BASELINE
    given.convert = not (given.from_scratch or given.baseline)
    given.rows = [replace(row, name=f"smoke-{row.name}") if given.smoke else row]
    given.preset, given.seeds, given.more = (SMOKE if given.smoke else QUICKSTART), [given.seed], ()
    given.jobs, given.gpus = 1, None
    given.prepare = given.dry_run = False
    return given


class Quickstart(Translation):
    name, file, presets = "quickstart", "quickstart.jsonl", {preset.name: preset for preset in (QUICKSTART, SMOKE)}
    description = DESCRIPTION
    diverging_is_a_result = False

    def main(self, argv: list[str]) -> int:
        given = parse(argv)
        given.command = [PROGRAM, *argv]
        given.out = program.from_root(given.out) or OUT
        given.data = given.out / "data"
        return program.run(lambda: self._both(given), f"continues: {self.goes_on}")

    def _both(self, given: argparse.Namespace) -> int:
        """Trains the model, and converts it if that is asked for; prints the tables of what there is."""
        (run,) = self.runs(given)
        status = self.reproduce(given)
        last = run.checkpoint
        if status == 0 and given.convert:
            preset = conversions.SMOKE if given.smoke else conversions.QUICKSTART
            softmax = str(run.checkpoint).replace(f"seed{given.seed}", "seed{seed}")
            given.preset = replace(preset, model=softmax)
            name = f"smoke-{conversions.WINDOW.name}" if given.smoke else conversions.WINDOW.name
            given.rows = [replace(conversions.WINDOW, name=name, control=False)]
            status = CONVERSION.reproduce(given)
            (converted,) = CONVERSION.runs(given)
            last = converted.checkpoint("finetuned")
        if status == 0:
            self._conclude(given, run, last)
        return status

    def _conclude(self, given: argparse.Namespace, run: commands.Run, checkpoint: Path) -> None:
        from tabulate import tabulate  # sacrebleu needs it too

        table, file, of = TABLES["quickstart"], self.file, self.name
        if given.convert:
            table, file, of = CONVERTED["quickstart-conversions"], CONVERSION.file, "quickstart-converted"
        if not (given.out / file).is_file():  # the runs are recorded elsewhere, and were skipped
            return
        found = [record for record in records.read_file(given.out / file) if record["preset"] == given.preset.name]
        shown = grid(replace(table, expected=[], select={}), of, found)
        cells = [[str(cell) for cell in row] for row in shown.rows]
        print("", tabulate(cells, shown.headings, "plain", disable_numparse=True), "", shown.note, sep="\n")
        if not given.smoke:
            line = commands.interactive(run, checkpoint, bool(self.devices(given)[0]))
            print(f"\nNext, translate sentences of your own:\n  {line}")


EXPERIMENT = Quickstart()
main = EXPERIMENT.main

if __name__ == "__main__":
    parse(sys.argv[1:])
