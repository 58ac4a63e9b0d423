"""The quickstart's command line. Standard library only, because it is checked before anything is installed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.common.arguments import Parser
from scripts.data.corpus import SMOKE_SENTENCES, VOCABULARY

from .settings import DECODING, SMOKE_TRAINING, TRAINING

DESCRIPTION = f"""\
Trains a small English-German Transformer on Multi30k, converts it to fast-weight attention, decodes test_2016_flickr
with both models (beam {DECODING["--beam"]}), and prints detokenised, cased sacreBLEU side by side, with the speed and
the memory of decoding. Sets up everything it needs. The same command skips finished steps and resumes an interrupted
training."""

EPILOG = f"""\
steps: .venv, corpus, {VOCABULARY} joint BPE pieces, fairseq-preprocess, {TRAINING["--max-update"]} updates of
fairseq-train with softmax attention, fwp average, fairseq-generate, fwp bleu; then those of
scripts/reproduce/finetune_softmax_to_fast_weights: fwp convert, fairseq-train, and the same measurements. Every command
is printed before it runs and can be copied.

results, below runs/quickstart (or --out):
  data/                 text, BPE model, binarised corpus: shared by all variants
  NAME/checkpoints/     of fairseq-train, and the average of the last epochs
  NAME/translations.de  one sentence per line, in the order of the test set
  NAME/*.log            the whole output of the tools
  NAME/record.json      the score, and how it was obtained
NAME is baseline for the softmax model, and finetune/STAGE for the converted one, from its conversion to its end.

examples:
  scripts/quickstart.sh                     a softmax model, and the same model converted to fast weights
  scripts/quickstart.sh --baseline          the softmax model alone
  scripts/quickstart.sh --from-scratch      fast weights from the beginning
  scripts/quickstart.sh --name delta -- --fwp-update-rule delta --fwp-d-dot 96

environment variables: FWP_DATA (folder with multi30k/, default ../shared/data; without it the data is downloaded),
OMP_NUM_THREADS (default: all cores, 8 at most), and those of scripts/environment.sh."""


def parse(argv: list[str]) -> argparse.Namespace:
    usage = "[--baseline | --from-scratch] [--smoke] [--record] [--seed N] [--cpu] [--out DIR] [--name NAME] [--help]"
    parser = Parser("scripts/quickstart.sh", DESCRIPTION, "FAIRSEQ-TRAIN-FLAGS", usage, epilog=EPILOG)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--baseline", action="store_true", help="train the softmax model alone, and convert nothing")
    one.add_argument(
        "--from-scratch",
        action="store_true",
        help="train one model with fast weights from the beginning: fwp_transformer_tiny_parity, or DPFP "
        "with the attention flags after --, which imply it",
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help=f"do the same steps in under 3 minutes: {SMOKE_TRAINING['--max-update']} updates and {SMOKE_SENTENCES} "
        "sentences; fails if the loss does not fall",
    )
    parser.add_argument("--record", action="store_true", help="also append the records to benchmarks/results")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of initialisation, order, dropout (1)")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder (default: runs/quickstart)")
    parser.add_argument(
        "--name",
        help="folder of this variant below --out (default: finetune for the converted model, baseline, or parity with "
        "--from-scratch; with -seedN for other seeds)",
    )
    arguments, theirs = parser.split(argv)
    arguments.train_flags = theirs
    arguments.attention = _attention(arguments, theirs)
    if arguments.name is None:
        if theirs:
            parser.error("fairseq-train flags after -- make another variant: name its folder with --name")
        parts = ["smoke"] * arguments.smoke + [
            "finetune" if arguments.attention == "converted" else arguments.attention
        ]
        parts += [f"seed{arguments.seed}"] * (arguments.seed != 1)
        arguments.name = "-".join(parts)
    parser.require_name(arguments.name)
    if arguments.record and arguments.smoke:
        parser.error("--record and --smoke: a smoke run is not a result")
    parser.require_least("--seed", arguments.seed, 0)
    return arguments


def _attention(arguments: argparse.Namespace, theirs: list[str]) -> str:
    if arguments.baseline:
        return "baseline"
    if not (arguments.from_scratch or theirs):
        return "converted"
    return "dpfp" if any(word.startswith("--fwp-") for word in theirs) else "parity"


def for_conversion(arguments: argparse.Namespace) -> list[str]:
    """The arguments of the recipe that converts the softmax model."""
    flags = [f"--{name}" for name in ("smoke", "cpu", "record") if getattr(arguments, name)]
    return ["--name", arguments.name, "--seed", str(arguments.seed), *flags]


if __name__ == "__main__":
    parse(sys.argv[1:])
