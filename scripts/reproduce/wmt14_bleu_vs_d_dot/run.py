#!/usr/bin/env python3
"""Trains, decodes, scores and records the rows of BLEU over d_dot; see --help."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    from scripts.reproduce.wmt14_bleu_vs_d_dot.reproduce import main

    sys.exit(main(sys.argv[1:]))
