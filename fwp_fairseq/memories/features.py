"""The feature maps of queries and keys at one site, and the normalisation of their features."""

from torch import Tensor, nn

from ..feature_maps import FeatureMap, build_feature_map
from ..ops.call import EPS, divide
from ..option import Options


class Features(nn.Module):
    """Applies the feature maps of a site, each in two parts: phi(x) = kernel_map(project(x)).

    :meth:`queries` and :meth:`keys` compute the first part, and operators, which are given :attr:`kernel_map`, the
    second one on the fly. Features of length 1 (the normaliser ``l2``), those of a map that kernels do not know, and
    ``explicit`` ones are computed as a whole before the operator, and the kernel map is the identity. This stores d_dot
    numbers for each position, twice in training.

    Parameters: those of ``feature_map``, and of ``query_map`` if queries have a map of their own.

    Args:
        options: of the site.
        d_key: width of queries and keys.
        heads: number of heads.
        explicit: whether the features are always computed before the operator.
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
        """Prepares queries (B, L, H, d_key) for the operator: projects them, or computes their features."""
        return self(q, self.query_map or self.feature_map)

    def keys(self, k: Tensor) -> Tensor:
        """Prepares keys (B, L, H, d_key) for the operator: projects them, or computes their features."""
        return self(k, self.feature_map)

    def forward(self, x: Tensor, phi: FeatureMap) -> Tensor:
        """Prepares queries or keys (B, L, H, d_key) for the operator, by their map."""
        x = x.transpose(1, 2)
        if self.has_length_one:
            return phi.of_length_one(x, EPS).transpose(1, 2)
        return phi(x, whole=self._identity is not None).transpose(1, 2)

    def phi(self, x: Tensor) -> Tensor:
        """Computes the features of what :meth:`queries` or :meth:`keys` returned; divides them as the operator does."""
        phi = self.kernel_map(x.transpose(1, 2)).transpose(1, 2)
        return divide(phi, phi.sum(-1, keepdim=True) + EPS) if self.normalize_features else phi

    def products(self, q: Tensor, k: Tensor) -> Tensor:
        """Computes phi(q).phi(k) for all pairs of queries and keys, (B, H, T, S), with phi(k) as the rule sees it."""
        return self.kernel_map(self.queries(q).transpose(1, 2)) @ self.phi(self.keys(k)).permute(0, 2, 3, 1)
