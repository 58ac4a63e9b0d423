"""Times recurrent fast nets against the delta rule: `python -m benchmarks.recurrent`.

One layer of attention with 8 heads of 64, on one thread; the minimum of CPU times counts, and all nets take turns. The
time of ``net`` is that of the fast net alone, given what the slow net gives; ``layer`` is the whole layer with its
projections. Before it is timed, each net's values and gradients are compared with the loop that defines it, in float64
and on a shorter input; the exit status is 1 if they do not agree.
"""

import sys
from dataclasses import replace
from typing import NamedTuple

import torch

from fwp_fairseq.kinds import Attention
from fwp_fairseq.layers import FastWeightAttention

from .clock import Call, fastest
from .program import Session, parser

HEADS, WIDTH, ROWS = 8, 64, 8
# The delta rule, which the nets are compared with, has the same feature map as they.
DELTA_RULE = "elu,update-rule=delta"
NETS = (DELTA_RULE, "delta-rnn", "recurrent-delta", "delta-lstm", "delta-mlp", "delta-delta")
_TOLERANCE, _CHECKED_LENGTH = 1e-9, 20


class Case(NamedTuple):
    what: str  # net or layer
    part: str  # forward or both
    length: int

    @property
    def name(self) -> str:
        return f"{self.what}-{self.part}-{self.length}"


CASES = [Case(what, part, length) for what in ("net", "layer") for part in ("forward", "both") for length in (64, 256)]


def build(kind: str, backend: str = "auto") -> FastWeightAttention:
    torch.manual_seed(1)
    options = replace(Attention.parse(kind).options(), backend=backend)
    return FastWeightAttention(options, HEADS * WIDTH, HEADS)


def error(name: str, device: str) -> float:
    """Returns the largest difference of values and gradients from the reference's, over the largest of these."""
    results = []
    for backend in ("auto", "reference"):
        layer = build(name, backend).double().to(device)
        x = torch.randn(
            2, _CHECKED_LENGTH, HEADS * WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
        )
        out, _ = layer(x.to(device))
        results.append([out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))])
    pairs = zip(*results, strict=True)
    errors = [(mine - theirs).abs().max() / theirs.abs().max().clamp(min=1) for mine, theirs in pairs]
    return torch.stack(errors).max().item()  # NaN if one is


def call(name: str, case: Case, device: str) -> Call:
    layer = build(name).to(device)
    x = torch.randn(ROWS, case.length, HEADS * WIDTH, device=device)
    if case.what == "layer":
        inputs = [x.requires_grad_(), *layer.parameters()]

        def run():
            return layer(x)[0]
    else:
        with torch.no_grad():
            q, (k, v, parts) = layer.queries(x), layer.writes(x)
        inputs = [y.requires_grad_() for y in (q, k, v, *parts.values())]

        def run():
            return layer.memory.attend(*inputs[:3], dict(zip(parts, inputs[3:], strict=True)))[0]

    if case.part == "forward":
        return Call(torch.no_grad()(run))
    ones = torch.ones(ROWS, case.length, HEADS * WIDTH, device=device)
    ones = ones if case.what == "layer" else ones.unflatten(-1, (HEADS, WIDTH))
    return Call(lambda: torch.autograd.grad(run(), inputs, ones))


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=2.0, help="time for each call (default 2)")
    arguments = options.parse_args(argv)
    torch.set_num_threads(1)
    session = Session("recurrent", arguments)
    cases = session.chosen(CASES)
    for name in NETS:
        if not (difference := error(name, arguments.device)) <= _TOLERANCE:
            session.failed.append(f"{name}: error {difference:.3g} against the reference, {_TOLERANCE:g} is allowed")
    if session.failed:
        return session.status()
    print(f"{session.where}, commit {session.environment['commit']}; ratios to the delta rule")
    for case in session.until_deadline(cases):
        calls = {name: [call(name, case, arguments.device)] for name in NETS}
        times = fastest(calls, arguments.device, arguments.seconds)
        ratios = {name: seconds / times.seconds[DELTA_RULE] for name, seconds in times.seconds.items()}
        cells = (f"{name} {seconds * 1e3:.2f} ms ({ratios[name]:.2f})" for name, seconds in times.seconds.items())
        print(f"{case.name:20}", "  ".join(cells), flush=True)
        session.record(
            **case._asdict(), rows=ROWS, heads=HEADS, d=WIDTH, threads=1, capability=session.capability, ratios=ratios,
            seconds=times.seconds, clocks=times.clocks,
        )  # fmt: skip
    return session.status()


if __name__ == "__main__":
    sys.exit(main())
