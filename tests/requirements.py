"""Tells which backends this machine can run, and which of them must not be skipped (``FWP_REQUIRE=native,cuda``)."""

import os

import torch

from fwp_fairseq.ops import RULES, backends

REQUIRED = frozenset(filter(None, os.environ.get("FWP_REQUIRE", "").replace(" ", "").split(",")))
KNOWN = ("native", "cuda")


def _reasons(backend: str, rule: str) -> list[str]:
    return dict(backends.backend_report(rule, "cpu"))[backend]


def serves(backend: str, rule: str) -> bool:
    """Whether the backend has this rule on the CPU."""
    return not _reasons(backend, rule)


def missing(name: str) -> str | None:
    """Why tests that need ``native`` or ``cuda`` cannot run; None if they can for at least one rule."""
    if name == "cuda":
        return None if torch.cuda.is_available() else "torch sees no CUDA device"
    if any(serves(name, rule) for rule in RULES):
        return None
    return "; ".join(dict.fromkeys(reason for rule in RULES for reason in _reasons(name, rule)))


# The backends that the operator tests compare with the naive implementation. conftest.py skips the tests of rules that
# a backend does not have.
TESTED = ("reference", "chunked", *(() if missing("native") else ("native",)))
