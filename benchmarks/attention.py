"""Times the operators against softmax attention and other implementations: `python -m benchmarks.attention`.

On a CPU, all implementations take turns in one process with one thread, and the minimum of their CPU times counts. On a
GPU, CUDA graphs over inputs larger than the cache are timed. The time of phi is included, except for fla, which is
given features. An implementation is timed only after its values and gradients agree with the reference in
float64; the exit status is 1 if ours do not. "torch" is the backend chunked. A line ends with the name of the fastest.
"""

import sys

import torch

from . import decode_step, gate
from .cases import CASES, WIDTH, Case
from .clock import Call, Calls, Times, fastest
from .implementations import IMPLEMENTATIONS, Implementation, inputs
from .program import Session, parser

# Total size of the inputs of all calls of a CUDA graph: several times the 50 MB cache of an H100 or H200.
_GRAPH_BYTES, _MOST_COPIES = 256 << 20, 64


def _copies(case: Case, device: str) -> int:
    if device == "cpu":
        return 1
    size = case.rows * case.length * 3 * WIDTH * getattr(torch, case.dtype).itemsize
    return max(1, min(_MOST_COPIES, _GRAPH_BYTES // size))


def _call(implementation: Implementation, case: Case, device: str, seed: int) -> Call:
    run, tensors, _ = implementation.prepare(case, inputs(case, device, seed))
    if case.part == "forward":
        return Call(lambda: run(**tensors))
    grad_out = torch.ones_like(tensors["v"])
    tensors = {name: y.detach().requires_grad_() for name, y in tensors.items()}
    return Call(lambda: torch.autograd.grad(run(**tensors), list(tensors.values()), grad_out))


def measure(case: Case, device: str, seconds: float, implementations: dict[str, Implementation]) -> dict:
    """Returns ``seconds``, ``clocks``, ``errors`` and the reasons of those not timed, ``refused``, each by name."""
    errors, refused = {}, {}
    for name, implementation in implementations.items():
        try:
            errors[name] = max(gate.check(name, implementation, case, device).values())
        except gate.Refused as error:
            refused[name] = str(error)
    timed = Times({}, {})
    if "ours" in errors:
        with torch.set_grad_enabled(case.part == "both"):
            copies = range(_copies(case, device))
            calls: Calls = {name: [_call(implementations[name], case, device, i) for i in copies] for name in errors}
            timed = fastest(calls, device, seconds)
    return {**timed._asdict(), "errors": errors, "refused": refused}


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, help="time for each call (default 1, on a GPU 0.1)")
    options.add_argument("--against", metavar="NAMES", help=f"default {','.join(list(IMPLEMENTATIONS)[1:])}")
    arguments = options.parse_args(argv)
    torch.set_num_threads(1)
    session = Session("attention", arguments)
    names = ["ours", *(arguments.against.split(",") if arguments.against else list(IMPLEMENTATIONS)[1:])]
    unknown = [name for name in names if name not in IMPLEMENTATIONS]
    if unknown:
        options.error(f"--against: expected some of {', '.join(list(IMPLEMENTATIONS)[1:])}, found {', '.join(unknown)}")
    implementations = {name: IMPLEMENTATIONS[name] for name in names}
    seconds = arguments.seconds or (1.0 if arguments.device == "cpu" else 0.1)
    cases = session.chosen(CASES[arguments.device])
    print(f"{session.where}, commit {session.environment['commit']}; ratios are ours over the other")
    for case in session.until_deadline(cases):
        decoding = case.part in ("decode", "reorder")
        if decoding:
            found = decode_step.measure(case, arguments.device, seconds, names)
        else:
            found = measure(case, arguments.device, seconds, implementations)
        if "ours" in found["refused"]:
            session.failed.append(found["refused"]["ours"])
            continue
        ours = found["seconds"]["ours"]
        ratios = {name: ours / other for name, other in found["seconds"].items() if name != "ours"}
        cells = [f"{case.name:42} {ours * 1e3:9.3f} ms", *(f"{name} {ratio:.3g}" for name, ratio in ratios.items())]
        cells.append(f"fastest: {min(found['seconds'], key=found['seconds'].get)}")
        print("  ".join(cells), flush=True)
        session.record(
            table="decode-step" if decoding else "attention", part=case.part, dtype=case.dtype,
            rule=case.rule, rows=case.rows, length=case.length, d_dot=case.d_dot,
            ratios=ratios, threads=1, capability=session.capability, **found,
        )  # fmt: skip
    return session.status()


if __name__ == "__main__":
    sys.exit(main())
