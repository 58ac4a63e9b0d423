"""The command line of run.sh. Standard library only, because it is checked before anything is installed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.common.arguments import Parser

HERE = Path("scripts/reproduce/finetune_softmax_to_fast_weights")
OUT = Path("runs/quickstart")
RECORDS = Path("benchmarks/results/finetune.jsonl")
# A fifth of the training of the quickstart's softmax model.
UPDATES = 400
LR = 1e-3  # a third of the quickstart's
SMOKE_UPDATES = 30
# All three sites, with what lost nothing against softmax: see docs/results.md.
CONVERSION = [
    *("--fwp-feature-map", "slots", "--fwp-d-dot", "64"),
    *("--fwp-decoder-feature-map", "hedgehog", "--fwp-decoder-d-dot", "128", "--fwp-decoder-window", "8"),
]

DESCRIPTION = f"""\
Turns a trained softmax model into one that decodes in constant memory: converts its checkpoint to fast weights (fwp
convert) and fine-tunes it for a short time; before that, --transfer trains its feature maps alone until they attend as
softmax did. Reports BLEU on Multi30k test_2016_flickr at each of these stages, and the speed and memory of decoding
before and after, on the test set and with long outputs.

  run.sh                                     slots; in the decoder Hedgehog with a window
  run.sh --name hedgehog --transfer 150 --updates 250 -- --fwp-feature-map hedgehog --fwp-d-dot 128
  run.sh --name dpfp -- --fwp-feature-map dpfp --fwp-d-dot 192 --fwp-encoder-feature-map softmax
  run.sh --name delta -- --fwp-feature-map dpfp --fwp-d-dot 96 --fwp-update-rule delta

The flags after -- are passed to fwp convert instead of
{" ".join(CONVERSION)}.
The softmax model is --checkpoint, or that of scripts/quickstart.sh --baseline, which is trained first if there is none
(12 to 15 minutes on 2 CPU cores). The same command continues after an interruption."""


def parse(argv: list[str]) -> argparse.Namespace:
    parser = Parser("run.sh", DESCRIPTION, "FWP-CONVERT-FLAGS")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="a model with the quickstart's dictionary")
    parser.add_argument(
        "--transfer",
        type=int,
        default=0,
        metavar="N",
        help="updates that train only the feature maps before, if they can be trained (default: 0)",
    )
    parser.add_argument("--updates", type=int, metavar="N", help=f"updates of fine-tuning (default: {UPDATES})")
    parser.add_argument("--lr", type=float, metavar="LR", help=f"of the fine-tuning (default: {LR:g})")
    parser.add_argument(
        "--control",
        action="store_true",
        help="also train the softmax model on, for as many updates in all, for comparison",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="for training and conversion (default: 1)")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"default: {OUT}, shared with the quickstart")
    parser.add_argument("--name", metavar="NAME", help="folder below --out (default: finetune)")
    parser.add_argument("--smoke", action="store_true", help="do the same steps in a minute; no real result")
    parser.add_argument(
        "--record", action="store_true", help=f"also append to {RECORDS}; refused if the working tree has changes"
    )
    options, options.conversion = parser.split(argv)
    if options.name is None:
        if options.conversion or options.transfer or [options.checkpoint, options.updates, options.lr] != [None] * 3:
            parser.error(
                "--checkpoint, --transfer, --updates, --lr and flags after -- make another variant: give it a --name"
            )
        parts = ["smoke"] * options.smoke + ["finetune"] + [f"seed{options.seed}"] * (options.seed != 1)
        options.name = "-".join(parts)
    parser.require_name(options.name)
    if options.record and options.smoke:
        parser.error("--record and --smoke: a smoke run is not a result")
    if options.updates is None:
        options.updates = SMOKE_UPDATES if options.smoke else UPDATES
    if options.lr is None:
        options.lr = LR
    options.conversion = options.conversion or CONVERSION
    options.table = "finetune" if options.checkpoint else "quickstart-converted"
    parser.require_least("--transfer", options.transfer, 0)
    parser.require_least("--updates", options.updates, 1)
    parser.require_least("--seed", options.seed, 0)
    return options


if __name__ == "__main__":
    parse(sys.argv[1:])
