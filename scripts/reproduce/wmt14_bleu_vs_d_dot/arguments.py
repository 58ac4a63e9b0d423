"""Parses the command line of run.py."""

from __future__ import annotations

import argparse
from pathlib import Path

from scripts.common.sweep import arguments

from .presets import PRESETS, WMT14
from .train_and_score import FILE

HERE = Path("scripts/reproduce/wmt14_bleu_vs_d_dot")
OUT = Path("runs/wmt14_bleu_vs_d_dot")
RECORDS = Path("benchmarks/results") / FILE

DESCRIPTION = """\
BLEU over d_dot: trains, decodes, scores and records the rows of Schlag et al. 2021, Table 1, at one of three scales.

  run.py --preset multi30k --jobs 2                 all rows, two at a time; each takes minutes
  run.py --preset wmt14 --gpus 0,1,2,3,4,5,6,7      the paper's own experiment (run prepare.sh first)
  run.py --preset multi30k --list                   what is done in --out, and what this project has recorded

After an interruption the same command continues: finished steps are kept, recorded rows are skipped, and a training
goes on from its last epoch.
"""


def parse(argv: list[str]) -> argparse.Namespace:
    parser = arguments.parser(DESCRIPTION, PRESETS, OUT, RECORDS)
    parser.add_argument(
        "--launcher",
        metavar="COMMAND",
        help="command that starts fairseq-train on several machines, with --world-size; see README.md",
    )
    parser.add_argument("--world-size", type=int, metavar="N", help="how many processes --launcher starts in total")
    for option, values in WMT14.choices.items():
        parser.add_argument(
            f"--{option}", choices=values, help=f"only for wmt14; the paper does not report it (default: {values[0]})"
        )
    options = arguments.parse(parser, argv, PRESETS)
    preset = options.preset
    options.choices = {}
    for option in WMT14.choices:
        given = getattr(options, option)
        if option in preset.choices:
            options.choices[option] = given or preset.choices[option][0]
        elif given:
            parser.error(f"--{option} goes with --preset wmt14, not with {preset.name}")
    if (options.launcher is None) != (options.world_size is None):
        parser.error("--launcher and --world-size go together")
    if options.launcher and (options.jobs > 1 or not preset.distributed):
        parser.error("--launcher goes with --preset wmt14 and one job at a time")
    return options
