"""phi of queries and keys at one site, and how its features are normalised."""

from torch import Tensor, nn

from ..feature_maps import FeatureMap, build_feature_map
from ..ops.call import EPS, divide
from ..option import Options


class Features(nn.Module):
    """The feature maps of a site, each in two parts: phi(x) = kernel_map(project(x)).

    :meth:`queries` and :meth:`keys` project; operators are given :attr:`kernel_map` and compute it on the fly. With
    features of length 1 (``l2``), for a map that kernels do not know, or if ``explicit``, whole features are computed
    beforehand and the kernel map is the identity: this stores d_dot numbers for each position, twice in training.

    Parameters: those of ``feature_map``, and of ``query_map`` if queries have a map of their own.

    Args:
        options: of the site.
        d_key: width of queries and keys.
        heads: number of heads.
        explicit: whether PyTorch computes the features.
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
        """The map that the operator applies to projected queries and keys."""
        return self._identity or self.feature_map.kernel_map

    def queries(self, q: Tensor) -> Tensor:
        """Projects queries (B, L, H, d_key) to what the operator reads with."""
        return self(q, self.query_map or self.feature_map)

    def keys(self, k: Tensor) -> Tensor:
        """Projects keys (B, L, H, d_key) to what the operator writes with."""
        return self(k, self.feature_map)

    def forward(self, x: Tensor, phi: FeatureMap) -> Tensor:
        """Projects queries or keys (B, L, H, d_key) by their map, for the operator."""
        x = x.transpose(1, 2)
        if self.has_length_one:
            return phi.of_length_one(x, EPS).transpose(1, 2)
        return phi(x, whole=self._identity is not None).transpose(1, 2)

    def phi(self, x: Tensor) -> Tensor:
        """Computes the features of what :meth:`queries` or :meth:`keys` returned; divides them as the operator does."""
        phi = self.kernel_map(x.transpose(1, 2)).transpose(1, 2)
        return divide(phi, phi.sum(-1, keepdim=True) + EPS) if self.normalize_features else phi

    def products(self, q: Tensor, k: Tensor) -> Tensor:
        """Computes phi(q).phi(k) of all pairs (B, H, T, S) of queries and keys, with phi(k) as it is written."""
        return self.kernel_map(self.queries(q).transpose(1, 2)) @ self.phi(self.keys(k)).permute(0, 2, 3, 1)
