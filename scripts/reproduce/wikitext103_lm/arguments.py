"""Parses the command line of run.py."""

from __future__ import annotations

import argparse
from pathlib import Path

from scripts.common.sweep import arguments

from .presets import PRESETS
from .train_and_evaluate import FILE

HERE = Path("scripts/reproduce/wikitext103_lm")
OUT = Path("runs/wikitext103_lm")
RECORDS = Path("benchmarks/results") / FILE

DESCRIPTION = """\
Language models with fast weights: prepares the text, then trains, evaluates and records the rows of Tables 2 to 5 of
Schlag et al. 2021, at one of four scales.

  run.py --preset tinyshakespeare --jobs 2    all rows on characters, two at a time; each takes minutes
  run.py --preset wikitext103 --gpus 0,1      the paper's own experiment; each row takes days
  run.py --preset tinyshakespeare --list      what is done in --out, and what this project has recorded
"""


def parse(argv: list[str]) -> argparse.Namespace:
    parser = arguments.parser(DESCRIPTION, PRESETS, OUT, RECORDS, "checkpoint")
    parser.add_argument(
        "--prepare", action="store_true", help="only fetch and prepare the text, for example where there is a network"
    )
    return arguments.parse(parser, argv, PRESETS)
