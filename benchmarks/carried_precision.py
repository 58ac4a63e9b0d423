"""Measures how exact a state stays that is carried over a million positions: `python -m benchmarks.carried_precision`.

A stream is read in segments, each from the state that the one before it left, in float32 by the compiled operators and
in float64 by the PyTorch backend. Both read the same inputs, which bfloat16 can represent. The errors are those of the
outputs of a segment and of W behind it: the largest difference over the largest element.
"""

import sys
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import Elu

from .gate import largest
from .program import Session, parser

POSITIONS, SEGMENT = 1_000_000, 1000
_HEADS, _WIDTH = 2, 64
RULES = {"sum": ops.sum_rule, "delta": ops.delta_rule, "gated": ops.gated_rule}


class Case(NamedTuple):
    """A rule."""

    name: str


def _inputs(rule: str, generator: torch.Generator) -> list[Tensor]:
    q, k, v = (torch.randn(1, SEGMENT, _HEADS, _WIDTH, generator=generator).bfloat16() for _ in range(3))
    beta = torch.rand(1, SEGMENT, _HEADS, generator=generator).bfloat16()
    return [q, k, v] if rule == "sum" else [q, k, v, beta]


def _read(rule: str, inputs: list[Tensor], dtype: torch.dtype, backend: str, state: ops.FastWeights | None):
    # The normalisers of the paper: keys of the delta rule are divided by their sum, the sum rule has a denominator.
    return RULES[rule](
        *(x.to(dtype) for x in inputs), feature_map=Elu(_WIDTH), backend=backend, initial_state=state,
        normalize_features=rule == "delta", normalize_output=rule == "sum", return_state=True,
    )  # fmt: skip


def measure(rule: str, segments: int) -> list[dict]:
    """Returns the errors behind 1, 10, 100, ... and all segments."""
    generator = torch.Generator().manual_seed(1)
    shown = {10**power for power in range(len(str(segments)))} | {segments}
    exact_state = state = None
    points = []
    for number in tqdm(range(1, segments + 1), desc=rule):
        inputs = _inputs(rule, generator)
        exact, exact_state = _read(rule, inputs, torch.float64, "chunked", exact_state)
        out, state = _read(rule, inputs, torch.float32, "native", state)
        if number in shown:
            errors = {"out": largest(out, exact), "W": largest(state.W, exact_state.W)}
            points.append({"positions": number * SEGMENT, **errors})
    return points


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__, devices=("cpu",))
    options.add_argument("--positions", type=int, default=POSITIONS, metavar="N", help=f"(default: {POSITIONS:,})")
    arguments = options.parse_args(argv)
    if arguments.positions < SEGMENT:
        options.error(f"--positions: expected {SEGMENT} or more, found {arguments.positions}")
    session = Session("carried-precision", arguments)
    for case in session.until_deadline(session.chosen([Case(rule) for rule in RULES])):
        points = measure(case.name, arguments.positions // SEGMENT)
        for point in points:
            print(f"{case.name:6} {point['positions']:9,}  out {point['out']:.1e}  W {point['W']:.1e}")
        session.record(rule=case.name, dtype="float32", points=points)
    return session.status()


if __name__ == "__main__":
    sys.exit(main())
