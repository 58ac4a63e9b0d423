"""What learned maps have in common: a matrix for every head, before a map without parameters."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .feature_map import FeatureMap


def _has_hooks(module: nn.Module) -> bool:
    """Whether calling the module does more than its forward."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    every = (
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
        "_global_backward_hooks",
        "_global_backward_pre_hooks",
    )
    return any(getattr(module, kind) for kind in kinds) or any(getattr(nn.modules.module, kind) for kind in every)


class LearnedMap(FeatureMap):
    """phi(x) = rest(W_h x + b_h), W_h (n, d_key) and b_h (n,) of head h; most maps have no b.

    Any n is possible. Cost: n d_key multiplications a head and position beside those of ``rest``.
    :meth:`folded_product` may need fewer, and :meth:`folded_into` saves them once training is over.

    Parameters: ``weight`` (heads, n, d_key), one block of it from :meth:`fresh_weight` for each head.
    """

    parameters_help: ClassVar = {"n": "rows of each learned matrix"}
    per_head = True
    learned = True

    def __init__(self, d_key: int, n: int, heads: int):
        super().__init__(d_key, self.width_for(d_key, n=n))
        self.n = n
        self.is_folded = False
        self.operator_map = self.make_rest()
        self.weight = nn.Parameter(self._fresh(heads))

    def _fresh(self, heads: int) -> Tensor:
        return torch.stack([self.fresh_weight(self.n, self.d_key) for _ in range(heads)])

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws the matrices anew."""
        self.weight.copy_(self._fresh(len(self.weight)))

    def project(self, x: Tensor) -> Tensor:
        """W_h x of x (..., heads, L, d_key), in the type of x; (..., heads, L, n). Once folded, x is W_h x already."""
        if self.is_folded:
            return x
        return torch.einsum("...hld,hnd->...hln", x, self.weight.to(x.dtype))

    @property
    def input_width(self) -> int:
        return self.n if self.is_folded else self.d_key

    def prepare(self, x: Tensor) -> Tensor:
        return self.biased(self.project(x))

    def biased(self, y: Tensor) -> Tensor:
        """y + b_h, of y (..., heads, L, n)."""
        return y

    def folded(self, projection: nn.Linear) -> tuple[Tensor, Tensor]:
        """Weight and bias of the projection whose output is W_h x, if that of ``projection`` is x, (..., heads d_key).

        The products are computed in float32 or wider and have the type of the projection's parameters.
        """
        kind = torch.promote_types(self.weight.dtype, torch.float32)
        with torch.autocast(self.weight.device.type, enabled=False):
            heads = self.weight.to(kind)
            weight = heads @ projection.weight.to(kind).unflatten(0, (-1, self.d_key))
            if projection.bias is None:
                bias = weight.new_zeros(weight.shape[:2])
            else:
                bias = heads @ projection.bias.to(kind).view(-1, self.d_key, 1)
        dtype = projection.weight.dtype
        return weight.flatten(0, 1).to(dtype), bias.flatten().to(dtype)

    @torch.no_grad()
    def folded_into(self, projection: nn.Linear) -> nn.Linear:
        """The projection of :meth:`folded`. Set ``is_folded`` when every one that the map follows has been replaced."""
        weight, bias = self.folded(projection)
        found = nn.utils.skip_init(
            nn.Linear, weight.shape[1], weight.shape[0], device=weight.device, dtype=weight.dtype
        )
        found.weight.copy_(weight)
        found.bias.copy_(bias)
        return found.train(projection.training)

    def is_cheaper_folded(self, projection: nn.Linear, positions: int) -> bool:
        """Whether W_h times the projection, then times so many inputs, needs no more multiplications than one by one.

        A projection that something else is attached to, such as quantisation noise, is left as it is.
        """
        if type(projection) is not nn.Linear or _has_hooks(projection):
            return False
        inputs = projection.in_features
        return positions >= inputs and self.n * inputs <= self.d_key * (inputs + self.n)

    def folded_product(self, projection: nn.Linear, x: Tensor) -> Tensor:
        """W_h times what ``projection`` makes of x (..., inputs), by one matrix product: (..., heads n)."""
        return F.linear(x, *self.folded(projection))

    @staticmethod
    def fresh_weight(n: int, d_key: int) -> Tensor:
        """W_h as a training begins with it, (n, d_key)."""
        raise NotImplementedError

    def make_rest(self) -> FeatureMap:
        """The map without parameters."""
        raise NotImplementedError

    def rest(self) -> FeatureMap:
        return self.operator_map

    def features(self, x: Tensor) -> Tensor:
        return self.rest().features(self.prepare(x))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, n={self.n}"

    @classmethod
    def natural_parameters(cls, d_key: int) -> dict[str, int]:
        return {"n": d_key}

    @classmethod
    def unit(cls, d_key: int) -> int:
        return 1
