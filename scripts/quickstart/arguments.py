"""The quickstart's command line. Standard library only, because it is checked before anything is installed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.common.arguments import Parser
from scripts.data.corpus import SMOKE_SENTENCES, VOCABULARY

from .settings import DECODING, SMOKE_TRAINING, TRAINING

DESCRIPTION = f"""\
Trains a small English-German translation model with fast-weight attention on Multi30k, decodes test_2016_flickr with
beam {DECODING["--beam"]} and prints detokenised, cased sacreBLEU. Sets up everything it needs. The same command skips
finished steps and resumes an interrupted training."""

EPILOG = f"""\
steps: .venv, corpus, {VOCABULARY} joint BPE pieces, fairseq-preprocess, {TRAINING["--max-update"]} updates of
fairseq-train, fwp average, fairseq-generate, fwp bleu. Every command is printed before it runs and can be copied.

results, below runs/quickstart (or --out):
  data/                 text, BPE model, binarised corpus: shared by all variants
  NAME/checkpoints/     of fairseq-train, and the average of the last epochs
  NAME/translations.de  one sentence per line, in the order of the test set
  NAME/*.log            the whole output of the tools
  NAME/record.json      the score, and how it was obtained

examples:
  scripts/quickstart.sh
  scripts/quickstart.sh --baseline
  scripts/quickstart.sh --name delta -- --fwp-update-rule delta --fwp-d-dot 96

environment variables: FWP_DATA (folder with multi30k/, default ../shared/data; without it the data is downloaded),
OMP_NUM_THREADS (default: all cores, 8 at most), and those of scripts/environment.sh."""


def parse(argv: list[str]) -> argparse.Namespace:
    usage = "[--baseline] [--smoke] [--record] [--seed N] [--cpu] [--out DIR] [--name NAME] [--help]"
    parser = Parser("scripts/quickstart.sh", DESCRIPTION, "FAIRSEQ-TRAIN-FLAGS", usage, epilog=EPILOG)
    parser.add_argument("--baseline", action="store_true", help="train stock softmax attention of the same size")
    parser.add_argument(
        "--smoke",
        action="store_true",
        help=f"do the same steps in under 3 minutes: {SMOKE_TRAINING['--max-update']} updates and {SMOKE_SENTENCES} "
        "sentences; fails if the loss does not fall",
    )
    parser.add_argument(
        "--record", action="store_true", help="also append the record to benchmarks/results/quickstart.jsonl"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of initialisation, order, dropout (1)")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder (default: runs/quickstart)")
    parser.add_argument(
        "--name",
        help="folder of this variant below --out (default: dpfp, baseline, or smoke; with -seedN for other seeds)",
    )
    arguments, theirs = parser.split(argv)
    arguments.train_flags = theirs
    arguments.attention = "baseline" if arguments.baseline else "dpfp"
    if arguments.name is None:
        if theirs:
            parser.error("fairseq-train flags after -- make another variant: name its folder with --name")
        parts = ["smoke"] * arguments.smoke + [arguments.attention] * (arguments.baseline or not arguments.smoke)
        parts += [f"seed{arguments.seed}"] * (arguments.seed != 1)
        arguments.name = "-".join(parts)
    parser.require_name(arguments.name)
    if arguments.record and arguments.smoke:
        parser.error("--record and --smoke: a smoke run is not a result")
    parser.require_least("--seed", arguments.seed, 0)
    return arguments


if __name__ == "__main__":
    parse(sys.argv[1:])
