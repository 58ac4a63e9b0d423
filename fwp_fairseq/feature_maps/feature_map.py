"""The base class of the feature maps phi: R^d_key -> R^d_dot."""

import math
from numbers import Integral
from typing import Any, ClassVar

from torch import Tensor, nn

from ..numerics import state_type, without_autocast
from .unit_rows import to_length_one


def check_whole(name: str, value: object) -> None:
    """Raises ValueError, which names the value, unless it is a whole number."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{name} = {value!r}, expected a whole number")


class FeatureMap(nn.Module):
    """Maps the last dimension of a tensor, ``(..., d_key) -> (..., d_dot)``.

    Half-precision inputs are converted to float32, with or without autocast, because products of two features would
    underflow in float16. A subclass sets ``name`` and defines the function in :meth:`features`. Its d_dot is
    :meth:`unit`, times a parameter from 1 to :meth:`largest` if ``parameters_help`` names one.

    Attributes:
        name: the name in flags and in ``FEATURE_MAPS``.
        title: the name in the literature, for help texts.
        widths: d_dot as a formula, for help texts.
        parameters_help: the parameter that sets the width (nu, m), with its help text; empty if there is one width.
        per_head: True if the map has parameters for every head, and is built with ``heads``.
        shared: True if queries and keys share one map, False if each has its own.
        homogeneity: n if phi(c x) = c^n phi(x) for every c > 0, else None. With n, decoding can cache keys instead of
            features, and does so if features are wider and never negative.
        non_negative: True if no feature is below 0, as normalisers require.
        kernel: the name of the map in the compiled operators; None if they do not implement it.
        of_whole_rows: True for a map with a kernel whose features depend on all numbers of a row. On CUDA, PyTorch
            computes these features before the kernels of the rules; those of decoding compute them themselves, because
            starting another kernel would take longer.

    ``homogeneity``, ``non_negative`` and ``kernel`` apply to the class that declares them. A subclass that defines
    anything does not inherit them, because it may compute something else; it has to declare them again.
    """

    name: str
    title: str
    widths: str = "d_key"
    parameters_help: ClassVar[dict[str, str]] = {}
    per_head: bool = False
    shared: bool = True
    homogeneity: int | None = None
    non_negative: bool = False
    kernel: str | None = None
    of_whole_rows: bool = False

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        # To shard or parametrize a module, PyTorch makes a subclass that adds nothing and computes the same.
        if not any(name == "__init__" or not name.startswith("__") for name in vars(cls)):
            return
        for promise in ("homogeneity", "non_negative", "kernel"):
            if promise not in vars(cls):
                setattr(cls, promise, getattr(FeatureMap, promise))

    def __init__(self, d_key: int, d_dot: int):
        super().__init__()
        self.d_key = d_key
        self.d_dot = d_dot

    def features(self, x: Tensor) -> Tensor:
        """Computes phi(x) for x (..., d_key) in float32 or wider; operators pass (..., H, L, d_key)."""
        raise NotImplementedError

    def project(self, x: Tensor) -> Tensor:
        """Computes the part of phi(x) = kernel_map(project(x)) before the operator, for x (..., H, L, d_key)."""
        return x

    @property
    def kernel_map(self) -> "FeatureMap":
        """Returns the part of the map that the operator computes, which compiled kernels may support on its own."""
        return self

    def kernel_projection(self) -> Tensor | None:
        """Returns FAVOR+'s matrix (m, d_key) for the compiled operators; None for maps without one."""
        return None

    def forward(self, x: Tensor, whole: bool = True) -> Tensor:
        """Computes phi(x), or only :meth:`project` unless ``whole``. Callers call the module, so that its hooks run."""
        if x.shape[-1] != self.d_key:
            raise ValueError(
                f"{self.name} feature map: last dimension of the input is {x.shape[-1]}, expected d_key = {self.d_key}"
            )
        if not whole:
            return self.project(x)
        with without_autocast(x):
            return self.features(x.to(state_type(x.dtype)))

    def of_length_one(self, x: Tensor, eps: float) -> Tensor:
        """Computes phi(x) / (|phi(x)| + eps), for x as in ``forward``."""
        return to_length_one(self(x), eps)

    def extra_repr(self) -> str:
        return f"d_key={self.d_key}, d_dot={self.d_dot}"

    @classmethod
    def natural_parameters(cls, d_key: int) -> dict[str, int]:
        """Returns the parameter (nu, m or none) that is used if no width is requested."""
        return dict.fromkeys(cls.parameters_help, 1)

    @classmethod
    def unit(cls, d_key: int) -> int:
        """Returns d_dot of the map with parameter 1, or without a parameter."""
        return d_key

    @classmethod
    def largest(cls, d_key: int) -> int | None:
        """Returns the largest value of the parameter; None if there is no limit."""
        return None if cls.parameters_help else 1

    @classmethod
    def width_for(cls, d_key: int, **parameters: int) -> int:
        """Computes d_dot of the map with a parameter; raises ValueError if there is no such map."""
        largest = cls.largest(d_key)
        for name, value in parameters.items():
            check_whole(name, value)
            if not 1 <= value <= (largest or value):
                problem = ", expected at least 1" if largest is None else f" is outside 1..{largest} (d_key = {d_key})"
                raise ValueError(f"{cls.name} feature map: {name} = {value}{problem}")
        return cls.unit(d_key) * math.prod(parameters.values())

    @classmethod
    def parameters_for(cls, d_key: int, d_dot: int) -> dict[str, int] | None:
        """Returns the parameter that gives this width, or None if no parameter does."""
        value, rest = divmod(d_dot, cls.unit(d_key))
        possible = not rest and 1 <= value <= (cls.largest(d_key) or value)
        return dict.fromkeys(cls.parameters_help, value) if possible else None

    @classmethod
    def nearest_widths(cls, d_key: int, d_dot: int) -> list[int]:
        """Returns the possible widths nearest to an impossible one, in ascending order."""
        below = d_dot // cls.unit(d_key)
        largest = cls.largest(d_key) or below + 1
        return sorted({cls.unit(d_key) * max(1, min(value, largest)) for value in (below, below + 1)})
