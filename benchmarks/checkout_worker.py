"""Times the operators of the checkout that is the current directory, for `benchmarks.checkouts`; not called by hand.

Each line of standard input is a case, as a JSON object, or empty; an empty line times the latest case for a while and
answers with the smallest CPU time of this thread, in seconds. It uses what every checkout has: the operators with
explicit arguments, and `build_feature_map`.
"""

import json
import sys
import time

import torch

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import build_feature_map

SECONDS = 0.15


def prepare(case: dict):
    torch.manual_seed(0)
    heads, width, dtype = case["heads"], case["width"], getattr(torch, case["dtype"])
    shape = (case["rows"] // heads, case["length"], heads)
    q, k, v = (torch.randn(*shape, width).to(dtype) for _ in range(3))
    tensors = [q, k, v] + ([torch.rand(shape).to(dtype)] if case["rule"] == "delta" else [])
    phi = build_feature_map(case["feature_map"], width, d_dot=case["d_dot"])
    options = dict(feature_map=phi, normalize_features=True, return_state=False, backend="native")
    rule = getattr(ops, f"{case['rule']}_rule")
    if case["part"] == "forward":
        return lambda: rule(*tensors, **options)
    tensors = [x.requires_grad_() for x in tensors]
    grad_out = torch.ones_like(v)
    return lambda: torch.autograd.grad(rule(*tensors, **options)[0], tensors, grad_out)


def fastest(call, inference: bool) -> float:
    best, end = float("inf"), time.perf_counter() + SECONDS
    with torch.set_grad_enabled(not inference):
        while time.perf_counter() < end:
            start = time.thread_time()
            call()
            best = min(best, time.thread_time() - start)
    return best


def main() -> None:
    torch.set_num_threads(1)
    call, case = None, {}
    for line in sys.stdin:
        if line.strip():
            case = json.loads(line)
            call = prepare(case)
            answer: object = ops.__file__
        else:
            answer = fastest(call, case["part"] == "forward")
        print(json.dumps(answer), flush=True)


main()
