#!/usr/bin/env python3
"""Compares update rules: 2S pairs are drawn from S keys with replacement, so that keys get new values.

Trains one model for each feature map, update rule and number of keys S, until its evaluation loss is at most 0.001 or
has not improved for 1100 steps (Schlag et al. 2021, Sec. 6.1.2 and Figure 3). fwm is the fast weight memory of Schlag,
Munkhdalai and Schmidhuber 2021; gated is the rule of Peng et al. 2021, for which the paper has no result."""

import sys
from pathlib import Path

SIZES = range(20, 201, 20)
QUICK = {
    "dpfp1-sum": (20, 40, 60, 80, 100, 140, 200),
    "dpfp1-delta": (20, 40, 60, 80, 100, 140, 200),
    "dpfp2-delta": (20, 60, 100),
    "elu-delta": (20, 60, 100),
    "dpfp1-gated": (20, 40, 60, 100),
    "dpfp1-fwm": (20,),
    "tanh-fwm": (20,),
}

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    from scripts.reproduce.synthetic.grid import arguments, main

    sys.exit(main(arguments("setting2", __doc__, SIZES, QUICK)))
