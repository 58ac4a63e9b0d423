"""The backends of the update rules in the order in which they are tried, and why one cannot serve a call."""

from contextlib import nullcontext

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .._operator import InPyTorch, Operator
from . import chunked, native, reference
from .call import CORRECTING, EPS, GATES, RULES, Call, Rule

# In order of preference. ``auto`` never gets to the reference, because ``chunked`` serves every call.
BACKENDS = {
    "native": native, "chunked": InPyTorch(chunked.run), "reference": InPyTorch(reference.run),
}  # fmt: skip
CHOICES = ("auto", *sorted(BACKENDS))
OPERATORS: dict[Rule, Operator] = {rule: Operator(f"{rule}_rule", **BACKENDS) for rule in RULES}


def backend_report(rule: Rule, device: str) -> list[tuple[str, list[str]]]:
    """Lists the backends in order of preference, each with the reasons why it cannot serve a typical call."""
    # Fake tensors need neither memory on a GPU nor the GPU itself.
    with nullcontext() if device == "cpu" else FakeTensorMode():
        x = torch.zeros(1, 1, 1, 2, device=device)
        beta, alpha = (
            torch.zeros(1, 1, 1, device=device) if name in GATES[rule] else None for name in ("beta", "alpha")
        )
        corrects = rule in CORRECTING
        call = Call(rule, x, x, x, beta, alpha, None, True, None, corrects, not corrects, EPS, None, True)
        return OPERATORS[rule].report(call)
