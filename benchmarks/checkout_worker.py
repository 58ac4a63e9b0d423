"""Times the operators of the checkout that is the current directory, for `benchmarks.checkouts`; not called by hand.

Each line of standard input is a case, as a JSON object, or empty; an empty line times the latest case for a while and
answers with the smallest CPU time of this thread, in seconds. It uses what every checkout has: the operators with
explicit arguments, `Decoding`, and `build_feature_map`.
"""

import json
import sys
import time
from copy import deepcopy

import torch

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import build_feature_map
from fwp_fairseq.ops.decoding import Decoding

SECONDS = 0.15


def prepare(case: dict):
    """What to do before every call, and the call, which receives what that returns."""
    torch.manual_seed(0)
    heads, width, dtype = case["heads"], case["width"], getattr(torch, case["dtype"])
    rule, decode = case["rule"], case["part"] == "decode"
    shape = (case["rows"] // heads, case["length"] + decode * case["steps"], heads)
    q, k, v = (torch.randn(*shape, width).to(dtype) for _ in range(3))
    tensors = [q, k, v] + ([torch.rand(shape).to(dtype)] if rule == "delta" else [])
    phi = build_feature_map(case["feature_map"], width, d_dot=case["d_dot"])
    if decode:
        return decoding(Decoding(rule, phi, rule == "delta", rule == "sum", backend="native"), tensors, case["length"])
    options = dict(feature_map=phi, normalize_features=True, return_state=False, backend="native")
    operator = getattr(ops, f"{rule}_rule")
    if case["part"] == "forward":
        return lambda: None, lambda _: operator(*tensors, **options)
    tensors = [x.requires_grad_() for x in tensors]
    grad_out = torch.ones_like(v)
    return lambda: None, lambda _: torch.autograd.grad(operator(*tensors, **options)[0], tensors, grad_out)


def decoding(site: Decoding, tensors: list, history: int):
    """Steps after a history, each from a copy of the same cache, because a cache is continued only once."""
    _, cache = site.step(None, *(x[:, :history] for x in tensors))
    steps = [[x[:, t : t + 1] for x in tensors] for t in range(history, tensors[0].shape[1])]

    def call(cache):
        for step in steps:
            _, cache = site.step(cache, *step)

    return lambda: deepcopy(cache), call


def fastest(before, call, inference: bool) -> float:
    best, end = float("inf"), time.perf_counter() + SECONDS
    with torch.set_grad_enabled(not inference):
        while time.perf_counter() < end:
            given = before()
            start = time.thread_time()
            call(given)
            best = min(best, time.thread_time() - start)
    return best


def main() -> None:
    torch.set_num_threads(1)
    before, call, case = None, None, {}
    for line in sys.stdin:
        if line.strip():
            case = json.loads(line)
            before, call = prepare(case)
            answer: object = ops.__file__
        else:
            answer = fastest(before, call, case["part"] != "both")
        print(json.dumps(answer), flush=True)


main()
