"""What learned maps have in common: a matrix for every head, before a map without parameters."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from .feature_map import FeatureMap


class LearnedMap(FeatureMap):
    """phi(x) = rest(prepare(x)), where ``prepare`` starts with W_h x, W_h (n, d_key) of head h.

    Any n is possible. Cost: n d_key multiplications a head and position beside those of ``rest``; :meth:`folded_into`
    saves them once training is over.

    Parameters: ``weight`` (heads, n, d_key), one block of it from :meth:`fresh_weight` for each head.
    """

    parameters_help: ClassVar = {"n": "rows of each learned matrix"}
    per_head = True
    learned = True

    def __init__(self, d_key: int, n: int, heads: int):
        super().__init__(d_key, self.width_for(d_key, n=n))
        self.n = n
        self.folded = False
        self.operator_map = self.make_rest()
        self.weight = nn.Parameter(torch.stack([self.fresh_weight(n, d_key) for _ in range(heads)]))

    def project(self, x: Tensor) -> Tensor:
        """W_h x of x (..., heads, L, d_key), in the type of x; (..., heads, L, n). Once folded, x is W_h x already."""
        if self.folded:
            return x
        return torch.einsum("...hld,hnd->...hln", x, self.weight.to(x.dtype))

    @torch.no_grad()
    def folded_into(self, projection: nn.Linear) -> nn.Linear:
        """Returns the projection whose output is W_h x, if that of ``projection`` is x, (..., heads d_key).

        The product is computed in float32 or wider. Set ``folded`` when every projection that the map follows has been
        replaced.
        """
        kind = torch.promote_types(self.weight.dtype, torch.float32)
        heads = self.weight.to(kind)
        found = nn.utils.skip_init(
            nn.Linear,
            projection.in_features,
            heads.shape[0] * self.n,
            device=heads.device,
            dtype=projection.weight.dtype,
        )
        found.weight.copy_((heads @ projection.weight.to(kind).unflatten(0, (-1, self.d_key))).flatten(0, 1))
        found.bias.copy_((heads @ projection.bias.to(kind).view(-1, self.d_key, 1)).flatten())
        return found.train(projection.training)

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
