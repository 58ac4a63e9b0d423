"""Times the operator against softmax attention: `python -m benchmarks.attention [--quick]`.

One thread, CPU time, minimum of repeats, phi included; the ratio is to torch's scaled_dot_product_attention (causal,
same B*H, length and 64-wide heads) measured in turn with it in the same process. Nothing is timed before its values
and gradients agree with the reference in float64. One JSON record a measurement goes to --output.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fwp_fairseq import feature_maps, ops, records

HEADS, D_KEY = 8, 64
# B*H, length, d_dot, largest acceptable ratio of the forward (sum, delta); forward + backward may be 1.3 times that.
TARGETS = (
    (256, 32, 64, 0.8, 1.1),
    (256, 32, 256, 1.5, 2.1),
    (256, 32, 512, 2.5, 3.6),
    (64, 128, 256, 1.3, 2.1),
    (64, 128, 512, 2.1, 3.6),
    (16, 1024, 256, 0.5, 0.85),
    (8, 4096, 256, 0.2, 0.3),
)
BACKENDS = ("native", "chunked")
# The widest error relative to the largest value, float32 against float64.
TOLERANCE = {"forward": 1e-6, "backward": 1e-5}


def inputs(batch: int, length: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """q, k, v as fairseq has them, (T, B, C) seen as (B, T, H, d); beta after the sigmoid."""
    torch.manual_seed(batch * length)
    x = {n: torch.randn(length, batch, HEADS * D_KEY, dtype=dtype) for n in ("q", "k", "v")}
    x = {n: y.view(length, batch, HEADS, D_KEY).transpose(0, 1) for n, y in x.items()}
    return x | {"beta": torch.rand(batch, length, HEADS, dtype=dtype)}


def operator(rule: str, d_dot: int, backend: str) -> Callable[..., Tensor]:
    """The decoder's call: causal, the paper's normaliser for the rule, no state wanted."""
    phi = feature_maps.build_feature_map("elu" if d_dot == D_KEY else "dpfp", D_KEY, d_dot)

    def run(q, k, v, beta):
        given = () if rule == "sum" else (beta,)
        return getattr(ops, f"{rule}_rule")(q, k, v, *given, feature_map=phi, backend=backend, return_state=False)[0]

    return run


def softmax(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """Torch's own attention in its own layout."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _gradients(run: Callable, x: dict[str, Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
    x = {n: y.detach().requires_grad_() for n, y in x.items()}
    out = run(**x)
    found = torch.autograd.grad(out, list(x.values()), gradient, allow_unused=True)
    return out.detach(), *(y for y in found if y is not None)


def gate(rule: str, length: int, d_dot: int, backend: str) -> None:
    """Raises AssertionError unless the backend agrees with the reference on one batch row."""
    length = min(length, 200)
    x = inputs(1, length, torch.float64)
    gradient = torch.randn(1, length, HEADS, D_KEY, dtype=torch.float64)
    expected = _gradients(operator(rule, d_dot, "reference"), x, gradient)
    found = _gradients(operator(rule, d_dot, backend), {n: y.float() for n, y in x.items()}, gradient.float())
    for number, (a, b) in enumerate(zip(expected, found, strict=True)):
        error = ((a - b).abs().max() / a.abs().max()).item()
        limit = TOLERANCE["backward" if number else "forward"] * (10 if backend != "native" else 1)
        assert error <= limit, f"{backend} {rule}_rule d_dot={d_dot} length={length} tensor {number}: {error:.1e}"


def minima(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Smallest CPU time of each call in seconds, measured in turn for about `seconds` each."""
    for call in calls.values():
        call()
    best = dict.fromkeys(calls, float("inf"))
    spent = dict.fromkeys(calls, 0.0)
    while True:
        waiting = [name for name in calls if spent[name] < seconds]
        if not waiting:
            return best
        for name in waiting:
            start = time.thread_time()
            calls[name]()
            used = time.thread_time() - start
            best[name] = min(best[name], used)
            spent[name] += used


def calls(rule: str, x: dict[str, Tensor], length: int, d_dot: int, backward: bool) -> dict[str, Callable]:
    """What is compared, by name."""
    heads_first = {n: y.transpose(1, 2).contiguous() for n, y in x.items()}
    runs = {name: (operator(rule, d_dot, name), x) for name in BACKENDS} | {"softmax": (softmax, heads_first)}
    if not backward:
        return {name: (lambda run=run, y=y: run(**y)) for name, (run, y) in runs.items()}

    def both(run, y):
        y = {n: a.detach().requires_grad_() for n, a in y.items()}
        gradient = torch.ones_like(y["v"])
        return lambda: torch.autograd.grad(run(**y), list(y.values()), gradient, allow_unused=True)

    return {name: both(run, y) for name, (run, y) in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU time for each call (default 1)")
    parser.add_argument("--longest", type=int, default=4096, help="leave out shapes of longer sequences")
    parser.add_argument("--output", help="append records here, e.g. benchmarks/results/attention.jsonl")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    environment = records.environment()
    print(
        f"{'rule':5} {'B*H':>4} {'L':>5} {'d_dot':>5} {'pass':8} {'softmax ms':>10} {'native':>7} {'chunked':>7} target"
    )
    for rows, length, d_dot, *limits in TARGETS:
        if length > arguments.longest:
            continue
        for rule, limit in zip(("sum", "delta"), limits, strict=True):
            for backend in BACKENDS:
                gate(rule, length, d_dot, backend)
            x = inputs(rows // HEADS, length)
            for name, backward in (("forward", False), ("both", True)):
                with torch.set_grad_enabled(backward):
                    best = minima(calls(rule, x, length, d_dot, backward), arguments.seconds)
                ratios = {backend: best[backend] / best["softmax"] for backend in BACKENDS}
                target = limit * (1.3 if backward else 1)
                print(
                    f"{rule:5} {rows:4} {length:5} {d_dot:5} {name:8} {best['softmax'] * 1e3:10.2f} "
                    f"{ratios['native']:7.2f} {ratios['chunked']:7.2f} {target:6.2f}",
                    flush=True,
                )
                if arguments.output:
                    record = {
                        "benchmark": "attention", "rule": rule, "rows": rows, "length": length, "d_dot": d_dot,
                        "pass": name, "dtype": "float32", "threads": 1, "seconds": best, "ratios": ratios,
                        "target": target, "capability": torch.ops.fwp.cpu_capability(), "environment": environment,
                    }  # fmt: skip
                    records.append(arguments.output, record)


if __name__ == "__main__":
    main()
