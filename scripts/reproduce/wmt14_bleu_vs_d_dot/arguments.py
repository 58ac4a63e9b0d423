"""Parses the command line of run.py."""

from __future__ import annotations

import argparse
from pathlib import Path

from scripts.common.sweep import arguments

from .presets import PRESETS
from .train_and_score import FILE

HERE = Path("scripts/reproduce/wmt14_bleu_vs_d_dot")
OUT = Path("runs/wmt14_bleu_vs_d_dot")
RECORDS = Path("benchmarks/results") / FILE

# The presets that leave a choice open, by the name of its option.
_CHOICES = {
    option: [preset for preset in PRESETS.values() if option in preset.choices]
    for option in dict.fromkeys(option for preset in PRESETS.values() for option in preset.choices)
}

DESCRIPTION = """\
BLEU over d_dot: trains, decodes, scores and records the rows of Schlag et al. 2021, Table 1, at one of several scales.

  run.py --preset multi30k --jobs 2                 all rows, two at a time; each takes minutes
  run.py --preset wmt14 --gpus 0,1,2,3,4,5,6,7      the paper's own experiment (run prepare.sh first)
  run.py --preset iwslt14 --gpus 0                  IWSLT14 German-English (run prepare.sh --preset iwslt14 first)
  run.py --preset multi30k --list                   what is done in --out, and what this project has recorded
"""


def parse(argv: list[str]) -> argparse.Namespace:
    parser = arguments.parser(DESCRIPTION, PRESETS, OUT, RECORDS, "epoch")
    parser.add_argument(
        "--launcher",
        metavar="COMMAND",
        help="command that starts fairseq-train on several machines, with --world-size; see README.md",
    )
    parser.add_argument("--world-size", type=int, metavar="N", help="how many processes --launcher starts in total")
    for option, presets in _CHOICES.items():
        defaults = ", ".join(f"{preset.name} {preset.choices[option][0]}" for preset in presets)
        values = dict.fromkeys(value for preset in presets for value in preset.choices[option])
        parser.add_argument(f"--{option}", choices=list(values), help=f"see README.md (default: {defaults})")
    options = arguments.parse(parser, argv, PRESETS)
    preset = options.preset
    options.choices = {}
    for option, presets in _CHOICES.items():
        given = getattr(options, option)
        if option in preset.choices:
            options.choices[option] = given or preset.choices[option][0]
        elif given:
            names = " or ".join(preset.name for preset in presets)
            parser.error(f"--{option} goes with --preset {names}, not with {preset.name}")
    if (options.launcher is None) != (options.world_size is None):
        parser.error("--launcher and --world-size go together")
    if options.launcher and (options.jobs > 1 or not preset.distributed):
        parser.error("--launcher goes with --preset wmt14 and one job at a time")
    return options
