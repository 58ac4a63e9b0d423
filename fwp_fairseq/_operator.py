"""Declares operators to torch, and chooses the backend that computes a call.

An :class:`Operator` is called as ``operator(backend, *arguments)``. A backend is a module or an object with two
functions: ``run`` computes the call, and ``unsupported_reasons`` lists the reasons why it cannot. A :class:`Kernel` is
a backend: an operator of the compiled library, declared to torch with the shapes of its results, what it keeps for the
backward pass, and its gradient.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _extension, _gpu_check
from ._constant import constant

logger = logging.getLogger(__name__)

_STATUS = _extension.status()
HAS_LIBRARY = _STATUS.cpu  # True if the compiled library is loaded; its CPU part defines every operator
UP_TO_SINGLE = (torch.float16, torch.bfloat16, torch.float32)
FLOATING = (*UP_TO_SINGLE, torch.float64)


class InPyTorch:
    """A backend that serves every call with a Python function."""

    def __init__(self, run: Callable):
        self.run = run

    def unsupported_reasons(self, *arguments: Any) -> list[str]:
        return []


class Operator:
    """A function with its backends in order of preference; ``auto`` chooses the first that can serve a call.

    Functions that process positions one after another have no backend ``chunked``; this name then chooses
    ``reference``, a loop over positions.
    """

    def __init__(self, what: str, **backends: Any):
        self.what, self.backends = what, backends

    def choose(self, backend: str, *arguments: Any) -> str:
        """Returns the name of the backend that computes a call.

        Raises NotImplementedError, which lists the reasons, if the named backend, or every backend, cannot serve it.
        """
        if backend != "auto":
            name = "reference" if backend == "chunked" and backend not in self.backends else backend
            missing = f"it is computed by {' and '.join(self.backends)} alone"
            if reasons := self.backends[name].unsupported_reasons(*arguments) if name in self.backends else [missing]:
                raise NotImplementedError(f"backend={backend!r} cannot serve {self.what}: {'; '.join(reasons)}")
            return name
        skipped = {}
        for name, module in self.backends.items():
            reasons = module.unsupported_reasons(*arguments)
            if not reasons:
                for other, why in skipped.items():
                    _log_fallback(name, other, tuple(why))
                return name
            skipped[name] = reasons
        raise NotImplementedError(f"no backend serves {self.what}: {skipped}")

    def __call__(self, backend: str, *arguments: Any) -> Any:
        """Computes the function with the named backend or, for ``auto``, with the first that can serve the call."""
        return self.backends[self.choose(backend, *arguments)].run(*arguments)

    def report(self, *arguments: Any) -> list[tuple[str, list[str]]]:
        """Lists the backends in order of preference, each with the reasons why it cannot serve a call."""
        return [(name, backend.unsupported_reasons(*arguments)) for name, backend in self.backends.items()]


@constant
def _log_fallback(chosen: str, skipped: str, reasons: tuple[str, ...]) -> None:
    """Logs each fallback once, as a warning if the library is damaged or missing, so that it is always shown."""
    missing = tuple(_STATUS.reasons.values())
    level = logging.WARNING if any(reason.endswith(missing) for reason in reasons) else logging.INFO
    logger.log(level, "fast weights: backend %s serves, not %s: %s", chosen, skipped, "; ".join(reasons))


class Kernel:
    """The operator ``name`` of csrc/fast_weights.cpp and, if it has a gradient, ``name_backward``.

    Args:
        fake: a function from the arguments to empty tensors in the form of the results.
        fake_backward, save, differentiate: the same for the backward operator; the ``setup_context`` of
            ``torch.library.register_autograd``; and the gradient. None if there is no gradient.
        types: the dtypes that it supports on the CPU.
        cuda_types: the dtypes that it supports on CUDA; empty if there is no CUDA kernel.
        cuda_refusal: the operator of the CUDA library that says why a device cannot serve tensors of certain sizes.
        sizes: a function from the arguments to the widths for ``cuda_refusal``; None if callers call :meth:`refused`.
        results: the number of results that :meth:`run` returns; the others are for the backward pass. None for all.
        second_derivatives_in: the backends that have them, for the error; None if ``differentiate`` is differentiable.
    """

    def __init__(
        self,
        name: str,
        fake: Callable,
        fake_backward: Callable | None = None,
        save: Callable | None = None,
        differentiate: Callable | None = None,
        *,
        types: tuple[torch.dtype, ...] = (torch.float32, torch.float64),
        cuda_types: tuple[torch.dtype, ...] = (),
        cuda_refusal: str | None = None,
        sizes: Callable[..., tuple] | None = None,
        results: int | None = None,
        second_derivatives_in: str | None = "reference",
    ):
        self._function: type[torch.autograd.Function] | None = None
        self.name, self.types, self.results = name, {"cpu": types, "cuda": cuda_types}, results
        self.cuda_refusal, self.sizes = cuda_refusal, sizes
        if not HAS_LIBRARY:
            return
        torch.library.register_fake(f"fwp::{name}", fake)
        if differentiate is None:
            return

        def refuse(ctx, *gradients):
            raise NotImplementedError(
                f"fwp::{name} has no second derivative; backends with derivatives of any order: {second_derivatives_in}"
            )

        torch.library.register_fake(f"fwp::{name}_backward", fake_backward)
        torch.library.register_autograd(f"fwp::{name}", differentiate, setup_context=save)
        self._function = _function(getattr(torch.ops.fwp, name), save, differentiate)
        if second_derivatives_in is not None:
            torch.library.register_autograd(f"fwp::{name}_backward", refuse)

    def __call__(self, *arguments: Any) -> Any:
        """Calls the operator.

        In the forward pass of training, it is called as an autograd function, because an operator that is registered
        with ``torch.library`` looks up the defaults of all arguments in each call, which takes longer than a small
        kernel. Compiled graphs use the operator itself.
        """
        if self._function is None or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return getattr(torch.ops.fwp, self.name)(*arguments)
        return self._function.apply(*arguments)

    def run(self, *arguments: Any) -> Any:
        return self(*arguments) if self.results is None else self(*arguments)[: self.results]

    def unsupported_reasons(self, like: Tensor, *others: Any) -> list[str]:
        """Returns the reasons why the compiled library cannot serve a call whose first argument is ``like``.

        Without :attr:`sizes`, these are the reasons against tensors of this dtype and device, of any size.
        """
        if not HAS_LIBRARY:
            return [_STATUS.reasons["cpu"]]
        reasons, device = _transforms(), like.device.type
        types = self.types.get(device, ())
        if device == "cuda" and types and not _extension.status().cuda:
            return [*reasons, f"CUDA kernels {_extension.status().reasons['cuda']}"]
        if not types:
            reasons.append(f"the compiled library has no kernel of {self.name} for {device} tensors")
        elif like.dtype not in types:
            kinds = " and ".join(map(str, types))
            reasons.append(f"the kernel of {self.name} for {device} computes in {kinds}, not in {like.dtype}")
        return reasons if reasons or self.sizes is None else self.refused(like, *self.sizes(like, *others))

    def refused(self, like: Tensor, *sizes) -> list[str]:
        """Returns why the GPU of ``like`` cannot run the kernel at these widths; empty if it can, or on a CPU.

        A GPU is checked once (:mod:`._gpu_check`). No size may be a length, because compiled graphs keep lengths
        symbolic.
        """
        if like.device.type != "cuda" or not torch.cuda.is_available():
            return []
        index = torch.cuda.current_device() if like.device.index is None else like.device.index
        reason = refusal(self.cuda_refusal, index, *sizes)
        return [reason] if reason else []


def _function(operator: Callable, save: Callable, differentiate: Callable) -> type[torch.autograd.Function]:
    """Returns the operator with its gradient as an autograd function."""

    def forward(ctx, *arguments):
        out = operator(*arguments)
        save(ctx, arguments, out)
        return out

    members = {"forward": staticmethod(forward), "backward": staticmethod(differentiate)}
    return type("FunctionOf" + operator.__name__, (torch.autograd.Function,), members)


@constant
def refusal(operator: str, index: int, *sizes) -> str:
    """Returns the reason why a GPU refuses these widths, or an empty text; it never changes within a process."""
    return getattr(torch.ops.fwp, operator)(index, *sizes) or _gpu_check.failure(index)


def _transforms() -> list[str]:
    """Returns the reason why active transforms rule out compiled operators, which would lose a tangent.

    An open level of forward mode is sufficient, even if no tensor carries a tangent, because a graph that is compiled
    under it may be called with or without tangents. Cost: two look-ups, and nothing in a compiled graph.
    """
    if torch._C._are_functorch_transforms_active():
        return ["the compiled library supports no transform of torch.func (grad, jvp, vmap and those built on them)"]
    if forward_ad._current_level >= 0:
        return ["the compiled library has no forward-mode derivative (a level of torch.autograd.forward_ad is open)"]
    return []


def new_rows(x: Tensor, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """Returns an empty tensor in the memory layout of x, as ``new_rows`` of csrc/common/tensors.h allocates it."""
    batch, length, heads = x.shape[:3]
    if x.stride(1) > x.stride(0):
        return x.new_empty(length, batch, heads, width, dtype=dtype).transpose(0, 1)
    return x.new_empty(batch, length, heads, width, dtype=dtype)
