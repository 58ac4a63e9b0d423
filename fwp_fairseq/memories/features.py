"""The feature maps of queries and keys at one site, and the normalisation of features."""

import torch
from torch import Tensor, nn

from ..feature_maps import FeatureMap, build_feature_map
from ..ops.call import EPS, divide
from ..option import Options


class Features(nn.Module):
    """Applies the feature maps of a site, each in two steps: phi(x) = kernel_map(project(x)) (:class:`.FeatureMap`).

    :meth:`queries` and :meth:`keys` compute as much of phi as operators do not compute themselves. Usually this is the
    first step, and operators, which receive :attr:`kernel_map`, compute the second step without storing its results. In
    three cases it is both steps, and :attr:`kernel_map` is the identity:

    - features of length 1 (the normaliser ``l2``),
    - maps that the kernels lack,
    - ``explicit``.

    The features are then stored, which takes d_dot numbers per position, and twice as many in training. (Operators also
    store features before they call their kernel on CUDA, if a feature depends on a whole row, and if eps is tiny; see
    :mod:`..ops.native` and :mod:`..ops.fast_weights`.)

    Parameters: those of ``feature_map``, and of ``query_map`` if queries have a separate map.

    Args:
        options: the options of the site.
        d_key: width of queries and keys.
        heads: number of heads.
        explicit: True to always compute features before the operator.
    """

    def __init__(self, options: Options, d_key: int, heads: int, *, explicit: bool = False):
        super().__init__()
        self.normalize_features, self.normalize_output = options.normalizes
        self.has_length_one = options.chosen_normalizer == "l2"
        self.feature_map = options.build_feature_map(d_key, heads)
        self.query_map = None if self.feature_map.shared else options.build_feature_map(d_key, heads)
        is_explicit = explicit or self.has_length_one or self.feature_map.kernel_map.kernel is None
        self._identity = build_feature_map("identity", self.d_dot) if is_explicit else None

    @property
    def d_dot(self) -> int:
        return self.feature_map.d_dot

    @property
    def kernel_map(self) -> FeatureMap:
        """Returns the map that the operator applies to the results of :meth:`queries` and :meth:`keys`."""
        return self._identity or self.feature_map.kernel_map

    def queries(self, q: Tensor) -> Tensor:
        """Computes the first step of the map for queries (B, L, H, d_key), or both steps in the three cases above."""
        return self(q, self.query_map or self.feature_map)

    def keys(self, k: Tensor) -> Tensor:
        """Does the same as :meth:`queries`, for keys (B, L, H, d_key)."""
        return self(k, self.feature_map)

    def forward(self, x: Tensor, phi: FeatureMap) -> Tensor:
        """Applies the map phi to queries or keys (B, L, H, d_key), as :meth:`queries` does."""
        x = x.transpose(1, 2)
        if self.has_length_one:
            features = phi.of_length_one(x, EPS).transpose(1, 2)
            # On CUDA, the features of half-precision inputs become float16, which has as many significant bits as the
            # kernels' operands. When a model in bfloat16 is trained, they stay float32, because float16 has too small a
            # range for its gradients.
            narrow = x.dtype == torch.float16 or (x.dtype == torch.bfloat16 and not torch.is_grad_enabled())
            return features.half() if x.is_cuda and narrow else features
        return phi(x, whole=self._identity is not None).transpose(1, 2)

    def phi(self, x: Tensor) -> Tensor:
        """Computes features from the result of :meth:`queries` or :meth:`keys`; normalises them like the operator."""
        phi = self.kernel_map(x.transpose(1, 2)).transpose(1, 2)
        return divide(phi, phi.sum(-1, keepdim=True) + EPS) if self.normalize_features else phi

    def products(self, q: Tensor, k: Tensor) -> Tensor:
        """Computes phi(q).phi(k) for all pairs of queries and keys, (B, H, T, S); :meth:`phi` normalises phi(k)."""
        return self.kernel_map(self.queries(q).transpose(1, 2)) @ self.phi(self.keys(k)).permute(0, 2, 3, 1)
