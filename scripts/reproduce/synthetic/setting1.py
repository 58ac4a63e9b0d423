#!/usr/bin/env python3
"""Measures capacity: S keys drawn without replacement are written by the sum rule, with eight feature maps.

Trains one model for each feature map and number of keys S, until its evaluation loss is at most 0.001 or has not
improved for 1100 steps (Schlag et al. 2021, Sec. 6.1.1 and Figure 2)."""

import sys
from pathlib import Path

SIZES = range(20, 601, 20)
QUICK = {
    "softmax": (20, 100, 200, 300, 400),
    "elu-sum": (20, 40, 60, 80, 100, 200),
    "dpfp1-sum": (20, 60, 100, 120, 140, 160, 200),
    "dpfp2-sum": (20, 100, 200, 240, 280),
    "dpfp3-sum": (20, 100, 200, 300, 340, 400),
    "favor64-sum": (20, 40, 60, 100),
    "favor128-sum": (20, 40, 60, 100),
    "favor512-sum": (20, 40, 60),
}

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    from scripts.reproduce.synthetic.grid import arguments, main

    sys.exit(main(arguments("setting1", __doc__, SIZES, QUICK)))
