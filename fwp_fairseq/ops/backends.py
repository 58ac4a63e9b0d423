"""Which backend serves a call, and why not the others."""

import logging
from contextlib import nullcontext
from typing import Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from .. import _extension
from . import chunked, native, reference
from .call import Call, FastWeights
from .constant import constant

logger = logging.getLogger(__name__)


class Backend(Protocol):
    """What a module that computes the operator offers."""

    def unsupported_reasons(self, call: Call) -> list[str]:
        """Why it cannot serve the call; empty when it can."""

    def run(self, call: Call) -> tuple[Tensor, FastWeights | None]:
        """``(out, state)``, as the operators of :mod:`.fast_weights` return them."""


# In order of preference; ``auto`` never picks the reference, which serves as the oracle.
BACKENDS: dict[str, Backend] = {"native": native, "chunked": chunked, "reference": reference}
CHOICES = ("auto", *sorted(BACKENDS))

# Calls served in this process, by backend and device; the test run reports it.
served: dict[tuple[str, str], int] = {}


def count(backend: str, x: Tensor) -> None:
    key = backend, x.device.type
    served[key] = served.get(key, 0) + 1


@constant
def _log_fallback(chosen: str, skipped: str, reasons: tuple[str, ...]) -> None:
    """Once a reason. A library that is missing or broken is a warning, which is seen where nobody set up logging."""
    missing = tuple(_extension.status().reasons.values())
    level = logging.WARNING if any(reason.endswith(missing) for reason in reasons) else logging.INFO
    logger.log(level, "fast weights: backend %s serves, not %s: %s", chosen, skipped, "; ".join(reasons))


def choose(what: str, backend: str, candidates: dict, *call) -> str:
    """The named backend, or for ``auto`` the first of the candidates that serves; each is asked for its reasons."""
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
        return BACKENDS[name].run(call)


def backend_report(operator: str, device: str) -> list[tuple[str, list[str]]]:
    """Per backend, in order of preference, why it cannot serve a usual call of ``operator`` (``"sum_rule"``, ...)."""
    rule = operator.removesuffix("_rule")
    # The question needs no memory on a GPU, nor the GPU itself.
    with nullcontext() if device == "cpu" else FakeTensorMode():
        x = torch.zeros(1, 1, 1, 2, device=device)
        beta = None if rule == "sum" else torch.zeros(1, 1, 1, device=device)
        call = Call(rule, x, x, x, beta, None, True, None, rule == "delta", rule != "delta", 1e-6, None, True)
        return [(name, module.unsupported_reasons(call)) for name, module in BACKENDS.items()]
