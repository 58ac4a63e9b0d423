"""The retrieval model: one of the project's operators, with trained projections that make its keys and queries."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fwp_fairseq.feature_maps import Favor, FeatureMap, build_feature_map
from fwp_fairseq.kinds import Attention
from fwp_fairseq.ops.fast_weights import FUNCTIONS

from .fast_weight_memory import fast_weight_memory
from .rows import D_KEY, FWM


def rule_and_map(name: str) -> tuple[str | None, FeatureMap | None]:
    """Returns update rule and feature map of a model; softmax attention has neither, and tanh is no feature map."""
    kind = FWM.get(name, name)
    if kind is None:
        return "fwm", None
    options = Attention.parse(kind).options()
    if options.is_softmax:
        return None, None
    return "fwm" if name in FWM else options.update_rule, build_feature_map(options.feature_map, D_KEY, options.d_dot)


class RetrievalModel(nn.Module):
    """k_i = W_k [onehot(v_i); e(k_i)] + b, beta_i = sigmoid(W_b [onehot(v_i); e(k_i)] + b), q = W_q e(query) + b.

    Values are fixed one-hot vectors. L pairs are written, then T queries read them: (B, L) and (B, T) -> (B, T, S).
    Sizes and initialisation are the authors'. Products with one-hot vectors are looked up instead of multiplied, and
    W_k e(k) is computed once for each of the S keys instead of once per position. The authors' embedding has S more
    rows, to which no key refers.

    Args:
        name: a kind of attention, or one of FWM.
        S: number of keys, and of values.
    """

    def __init__(self, name: str, S: int):
        super().__init__()
        self.S = S
        self.rule, phi = rule_and_map(name)
        width = 22 * S // 10
        self.embedding = nn.Parameter(torch.randn(S, width))
        self.to_key = nn.Linear(S + width, D_KEY)
        self.to_query = nn.Linear(width, D_KEY)
        self.to_beta = nn.Linear(S + width, 1) if self.rule in ("delta", "gated", "fwm") else None
        for linear in (self.to_key, self.to_query):
            if self.rule is None:
                nn.init.xavier_uniform_(linear.weight)
            else:
                nn.init.uniform_(linear.weight, -1 / math.sqrt(D_KEY), 1 / math.sqrt(D_KEY))
        self.phi = phi
        self._draws = 0

    def _of_pairs(self, linear: nn.Linear, keys: Tensor, values: Tensor) -> Tensor:
        of_value, of_key = linear.weight.split([self.S, self.embedding.shape[1]], dim=1)
        of_key = F.linear(self.embedding, of_key, linear.bias)
        return F.embedding(keys, of_key) + F.embedding(values, of_value.T)

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor) -> Tensor:
        k = self._of_pairs(self.to_key, keys, values)[:, :, None]
        q = F.embedding(queries, self.to_query(self.embedding))[:, :, None]
        v = k.new_zeros(*values.shape, self.S).scatter_(2, values[..., None], 1.0)[:, :, None]
        beta = None if self.to_beta is None else self._of_pairs(self.to_beta, keys, values).sigmoid()
        return self._remember(q, k, v, beta)[:, :, 0]

    def _remember(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None) -> Tensor:
        if isinstance(self.phi, Favor):  # the paper's has no temperature; the map's docstring describes the effect
            q, k = q * D_KEY**0.25, k * D_KEY**0.25
        if self.rule is None:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        if self.rule == "fwm":
            phi = torch.tanh if self.phi is None else self.phi
            return fast_weight_memory(phi(q), phi(k), v, beta)
        if isinstance(self.phi, Favor):
            # As in the authors' code, every call draws a new matrix, also in evaluation.
            self.phi.train().set_num_updates(self._draws)
            self._draws += 1
        inputs = (q, k, v) if beta is None else (q, k, v, beta)
        return FUNCTIONS[self.rule](*inputs, feature_map=self.phi, causal=False, return_state=False)[0]
