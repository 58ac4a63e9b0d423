"""A fast weight matrix inside a fast net, beside the site's own."""

from torch import Tensor, nn

from ... import ops
from ..feature_normalizers import FEATURE_NORMALIZERS, features
from ..site_config import EPS, SiteConfig
from .fast_net import Run


class Memory(nn.Module):
    """Writes by the delta rule and reads, with the site's kind of feature map and normaliser, for keys of any width.

    Args:
        config: the options of the site; its d_dot is of maps of the site's own keys, others have their natural width.
        d_key: width of keys and queries.
        heads: number of heads.
    """

    def __init__(self, config: SiteConfig, d_key: int, heads: int):
        super().__init__()
        self.normalize_features, _ = config.normalizes
        self.backend = config.backend
        self.feature_map = config.build_feature_map(d_key, heads)
        self.query_map = None if self.feature_map.shared else config.build_feature_map(d_key, heads)
        self.feature_normalizer = FEATURE_NORMALIZERS.get(config.chosen_normalizer)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor | None, run: Run
    ) -> tuple[Tensor, Tensor | None]:
        """q, k (B, L, H, d_key), v (B, L, H, d_value) and beta (B, L, H, 1), after its sigmoid: (read, W)."""
        q_map, k_map, normalizer = self.query_map or self.feature_map, self.feature_map, self.feature_normalizer
        if normalizer is None:
            phi_q, phi_k = features(q_map, q), features(k_map, k)
        else:
            phi_q, phi_k = normalizer.queries(q_map, q), normalizer.keys(k_map, k, run.pads)
        out, state = ops.delta_rule(
            phi_q.to(q.dtype),
            phi_k.to(k.dtype),
            v,
            beta.squeeze(-1),
            key_padding_mask=run.pads,
            normalize_features=self.normalize_features,
            normalize_output=False,
            eps=EPS,
            initial_state=None if W is None else (W, None),
            backend=self.backend,
            return_state=run.return_state,
        )
        return out, None if state is None else state.W
