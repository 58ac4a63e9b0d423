"""Times the operators against softmax attention and other implementations: `python -m benchmarks.attention`.

On a CPU, all implementations take turns in one process with one thread, and the minimum of their CPU times counts. On a
GPU, CUDA graphs over inputs larger than the cache are timed. The time of phi is included, except for fla, which is
given features. An implementation is timed only after its values and gradients agree with the reference in
float64; the exit status is 1 if ours do not. "torch" is the backend chunked. On a GPU "softmax" is the fastest of
PyTorch's kernels (flash, cudnn, efficient). "fla" is flash-linear-attention on features that it is given, "fla-mapped"
makes them too, and "fla-mapped-eager" is the same without a CUDA graph. A line ends with the name of the fastest.
"""

import sys
from pathlib import Path

import torch

from . import decode_step, operators
from .cases import CASES
from .earlier import Earlier
from .implementations import IMPLEMENTATIONS, timed_as
from .program import Session, parser


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, help="time for each call (default 1, on a GPU 0.1)")
    names = [name for name in IMPLEMENTATIONS if name != "ours" and not name.startswith("softmax-")]
    options.add_argument("--against", metavar="NAMES", help=f"default {','.join(names)}")
    what = "also time earlier commits: DIR/COMMIT/fwp_fairseq are their packages with the compiled libraries"
    options.add_argument("--earlier", type=Path, metavar="DIR", help=what)
    arguments = options.parse_args(argv)
    torch.set_num_threads(1)
    session = Session("attention", arguments)
    wanted = arguments.against.split(",") if arguments.against else names
    if unknown := [name for name in wanted if name not in names]:
        options.error(f"--against: expected some of {', '.join(names)}, found {', '.join(unknown)}")
    implementations = {name: IMPLEMENTATIONS[name] for name in ["ours", *timed_as(wanted, arguments.device)]}
    seconds = arguments.seconds or (1.0 if arguments.device == "cpu" else 0.1)
    cases = session.chosen(CASES[arguments.device])
    print(f"{session.where}, commit {session.environment['commit']}; ratios are ours over the other")
    earlier = Earlier(arguments.earlier, arguments.device, seconds)
    for case in session.until_deadline(cases):
        decoding = case.part in ("decode", "reorder")
        if decoding:
            measured = decode_step.measure(case, arguments.device, seconds, list(implementations))
        else:
            measured = earlier.added(operators.measure(case, arguments.device, seconds, implementations), case)
        if "ours" in measured["refused"]:
            session.failed.append(measured["refused"]["ours"])
            continue
        ours = measured["seconds"]["ours"]
        ratios = {name: ours / other for name, other in measured["seconds"].items() if name != "ours"}
        cells = [f"{case.name:42} {ours * 1e3:9.3f} ms", *(f"{name} {ratio:.3g}" for name, ratio in ratios.items())]
        cells.append(f"fastest: {min(measured['seconds'], key=measured['seconds'].get)}")
        print("  ".join(cells), flush=True)
        session.record(
            table="decode-step" if decoding else "attention", part=case.part, dtype=case.dtype,
            rule=case.rule, rows=case.rows, length=case.length, d_dot=case.d_dot,
            ratios=ratios, threads=1, capability=session.capability, **measured,
        )  # fmt: skip
    earlier.end()
    return session.status()


if __name__ == "__main__":
    sys.exit(main())
