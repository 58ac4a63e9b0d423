"""The retrieval model: one of the project's operators, with trained projections that make its keys and queries."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import Favor

from .fast_weight_memory import fast_weight_memory
from .rows import D_KEY, Variant


class RetrievalModel(nn.Module):
    """k_i = W_k [onehot(v_i); e(k_i)] + b, beta_i = sigmoid(W_b [onehot(v_i); e(k_i)] + b), q = W_q e(query) + b.

    Values are fixed one-hot vectors. L pairs are written, then T queries read them: (B, L) and (B, T) -> (B, T, S).
    Sizes and initialisation are the authors'. Products with one-hot vectors are looked up instead of multiplied, and
    W_k e(k) is computed once for each of the S keys instead of once per position. The authors' embedding has S more
    rows, to which no key refers.

    Args:
        S: number of keys, and of values.
    """

    def __init__(self, variant: Variant, S: int):
        super().__init__()
        self.variant, self.S = variant, S
        width = 22 * S // 10
        self.embedding = nn.Parameter(torch.randn(S, width))
        self.to_key = nn.Linear(S + width, D_KEY)
        self.to_query = nn.Linear(width, D_KEY)
        self.to_beta = nn.Linear(S + width, 1) if variant.rule in ("delta", "gated", "fwm") else None
        for linear in (self.to_key, self.to_query):
            if variant.feature_map == "softmax":
                nn.init.xavier_uniform_(linear.weight)
            else:
                nn.init.uniform_(linear.weight, -1 / math.sqrt(D_KEY), 1 / math.sqrt(D_KEY))
        self.phi = variant.build_feature_map()
        self._draws = 0

    def _of_pairs(self, linear: nn.Linear, keys: Tensor, values: Tensor) -> Tensor:
        of_value, of_key = linear.weight.split([self.S, self.embedding.shape[1]], dim=1)
        of_key = F.linear(self.embedding, of_key, linear.bias)
        return F.embedding(keys, of_key) + F.embedding(values, of_value.T)

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor) -> Tensor:
        k = self._of_pairs(self.to_key, keys, values)[:, :, None]
        q = F.embedding(queries, self.to_query(self.embedding))[:, :, None]
        v = k.new_zeros(*values.shape, self.S).scatter_(2, values[..., None], 1.0)[:, :, None]
        given = [q, k, v]
        if self.to_beta is not None:
            given.append(self._of_pairs(self.to_beta, keys, values).sigmoid())
        return self._remember(*given)[:, :, 0]

    def _remember(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None = None) -> Tensor:
        rule = self.variant.rule
        if isinstance(self.phi, Favor):  # the paper's has no temperature; the map's docstring describes the effect
            q, k = q * D_KEY**0.25, k * D_KEY**0.25
        if rule is None:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        if rule == "fwm":
            phi = torch.tanh if self.phi is None else self.phi
            return fast_weight_memory(phi(q), phi(k), v, beta)
        if isinstance(self.phi, Favor):
            # As in the authors' code, every call draws a new matrix, also in evaluation.
            self.phi.train().set_num_updates(self._draws)
            self._draws += 1
        operator = {"sum": ops.sum_rule, "delta": ops.delta_rule, "gated": ops.gated_rule}[rule]
        given = (q, k, v) if beta is None else (q, k, v, beta)
        return operator(*given, feature_map=self.phi, causal=False, return_state=False)[0]
