"""Which backends this machine can run, and which of them the caller insists on (``FWP_REQUIRE=native,cuda``)."""

import os

import torch

from fwp_fairseq.ops import backends

REQUIRED = frozenset(filter(None, os.environ.get("FWP_REQUIRE", "").replace(" ", "").split(",")))
KNOWN = ("native", "cuda")


def missing(name: str) -> str | None:
    """Why tests that need ``native`` or ``cuda`` cannot run; None when they can."""
    if name == "cuda":
        return None if torch.cuda.is_available() else "torch sees no CUDA device"
    reasons = [
        reason
        for rule in ("sum_rule", "delta_rule", "gated_rule")
        for backend, why in backends.backend_report(rule, "cpu")
        if backend == name
        for reason in why
    ]
    return "; ".join(dict.fromkeys(reasons)) or None


# The backends that the operator tests compare with the naive implementation.
TESTED = ("reference", "chunked", *(() if missing("native") else ("native",)))
