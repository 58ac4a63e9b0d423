"""phi of queries and keys at one site, and how its features are normalised."""

from torch import Tensor, nn

from ..feature_maps import FeatureMap, build_feature_map
from ..ops.call import EPS, divide
from ..options import SiteOptions


class Features(nn.Module):
    """The feature maps of a site, cut in two: what comes before the operator, and what the operator applies.

    With phi = rest(prepare(x)), :meth:`queries` and :meth:`keys` are ``prepare`` and :attr:`operator_map` is ``rest``,
    which kernels compute on the fly. With features of length 1 (``l2``), or if ``explicit``, the former make whole
    features and the operator takes them as they are: d_dot numbers a position in memory, and again for the backward.

    Parameters: those of ``feature_map``, and of ``query_map`` if queries have a map of their own.

    Args:
        options: of the site.
        d_key: width of queries and keys.
        heads: number of heads.
        explicit: whether PyTorch computes the features.
    """

    def __init__(self, options: SiteOptions, d_key: int, heads: int, *, explicit: bool = False):
        super().__init__()
        self.normalize_features, self.normalize_output = options.normalizes
        self.has_length_one = options.chosen_normalizer == "l2"
        self.is_explicit = explicit or self.has_length_one
        self.feature_map = options.build_feature_map(d_key, heads)
        self.query_map = None if self.feature_map.shared else options.build_feature_map(d_key, heads)
        self.identity_map = build_feature_map("identity", self.feature_map.d_dot)

    @property
    def d_dot(self) -> int:
        return self.feature_map.d_dot

    @property
    def operator_map(self) -> FeatureMap:
        """The map that the operator applies: the identity if features were computed here."""
        return self.identity_map if self.is_explicit else self.feature_map.rest()

    @property
    def known_map(self) -> FeatureMap | None:
        """The map that the operator applies, None if the kernels do not know it."""
        found = self.operator_map
        return None if found.kernel is None else found

    def queries(self, q: Tensor) -> Tensor:
        """From projected queries (B, L, H, d_key) to what the operator takes."""
        return self(q, self.query_map or self.feature_map)

    def keys(self, k: Tensor) -> Tensor:
        """From projected keys (B, L, H, d_key) to what the operator takes."""
        return self(k, self.feature_map)

    def forward(self, x: Tensor, phi: FeatureMap) -> Tensor:
        """Computes what the operator takes of queries or keys (B, L, H, d_key), by their map."""
        x = x.transpose(1, 2)
        if self.has_length_one:
            return phi.of_length_one(x, EPS).transpose(1, 2)
        return phi(x, whole=self.is_explicit).transpose(1, 2)

    def phi(self, x: Tensor) -> Tensor:
        """The features that the operator makes of what :meth:`queries` or :meth:`keys` returned, not yet divided."""
        return self.operator_map(x.transpose(1, 2)).transpose(1, 2)

    def decoded(self, x: Tensor) -> Tensor:
        """What decoding takes of queries or keys: features of a map that the kernels do not know, else x."""
        return self.phi(x) if self.known_map is None else x

    def divided(self, x: Tensor) -> Tensor:
        """The features of :meth:`phi`, divided by their sum if the normaliser says so."""
        phi = self.phi(x)
        return divide(phi, phi.sum(-1, keepdim=True) + EPS) if self.normalize_features else phi

    def products(self, q: Tensor, k: Tensor) -> Tensor:
        """phi(q).phi(k) of all pairs of inputs (B, T or S, H, width), with phi(k) as it is written: (B, H, T, S)."""
        return self.phi(q).transpose(1, 2) @ self.divided(k).permute(0, 2, 3, 1)
