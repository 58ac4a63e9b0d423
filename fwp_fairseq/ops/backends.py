"""Chooses the backend that serves a call, and reports why others cannot."""

import logging
from contextlib import nullcontext
from typing import Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from .. import _extension
from .._constant import constant
from . import both_ways, chunked, native, reference
from .call import CORRECTING, STRENGTHS, Call, FastWeights, Rule

logger = logging.getLogger(__name__)


class Backend(Protocol):
    """The interface of a module that computes the operators."""

    def unsupported_reasons(self, call: Call) -> list[str]:
        """Why the backend cannot serve the call; empty when it can."""

    def run(self, call: Call) -> tuple[Tensor, FastWeights | None]:
        """``(out, state)``, as the operators of :mod:`.fast_weights` return them."""


# In order of preference. ``auto`` never gets to the reference, because ``chunked`` serves every call.
BACKENDS: dict[str, Backend] = {"native": native, "chunked": chunked, "reference": reference}
CHOICES = ("auto", *sorted(BACKENDS))

# Number of calls served in this process, by backend and device; the test suite reports it at its end.
served: dict[tuple[str, str], int] = {}


def count(backend: str, x: Tensor) -> None:
    key = backend, x.device.type
    served[key] = served.get(key, 0) + 1


@constant
def _log_fallback(chosen: str, skipped: str, reasons: tuple[str, ...]) -> None:
    """Logs each fallback once. A library that is not as it should be is a warning, which shows without any logging."""
    missing = (*_extension.status().reasons.values(), *native.OLDER)
    level = logging.WARNING if any(reason.endswith(missing) for reason in reasons) else logging.INFO
    logger.log(level, "fast weights: backend %s serves, not %s: %s", chosen, skipped, "; ".join(reasons))


def choose(what: str, backend: str, candidates: dict, *call) -> str:
    """Returns the named backend, or for ``auto`` the first candidate that can serve the call.

    Raises NotImplementedError, with every reason, when the named backend or no candidate can serve it.
    """
    if backend != "auto":
        reasons = candidates[backend].unsupported_reasons(*call)
        if reasons:
            raise NotImplementedError(f"backend={backend!r} cannot serve {what}: {'; '.join(reasons)}")
        return backend
    skipped = {}
    for name, module in candidates.items():
        reasons = module.unsupported_reasons(*call)
        if not reasons:
            for other, why in skipped.items():
                _log_fallback(name, other, tuple(why))
            return name
        skipped[name] = reasons
    raise NotImplementedError(f"no backend serves {what}: {skipped}")


def run(call: Call, backend: str) -> tuple[Tensor, FastWeights | None]:
    """Runs the call on the named backend, or on the fastest that supports it for ``auto``."""
    name = choose(f"{call.rule}_rule", backend, BACKENDS, call)
    count(name, call.v)
    with torch.autocast(call.v.device.type, enabled=False):
        if call.both_ways and name != "native":
            return both_ways.run(BACKENDS[name].run, call)
        return BACKENDS[name].run(call)


def backend_report(operator: str, device: str) -> list[tuple[str, list[str]]]:
    """Lists, in order of preference, each backend and why it cannot serve a usual call of ``operator``.

    ``operator`` is the name of a rule with ``_rule`` after it; a backend that serves it has no reasons.
    """
    rule: Rule = operator.removesuffix("_rule")
    # With fake tensors this needs no memory on a GPU, nor the GPU itself.
    with nullcontext() if device == "cpu" else FakeTensorMode():
        x = torch.zeros(1, 1, 1, 2, device=device)
        beta, alpha = (
            torch.zeros(1, 1, 1, device=device) if name in STRENGTHS[rule] else None for name in ("beta", "alpha")
        )
        corrects = rule in CORRECTING
        call = Call(rule, x, x, x, beta, alpha, None, True, None, corrects, not corrects, 1e-6, None, True)
        return [(name, module.unsupported_reasons(call)) for name, module in BACKENDS.items()]
