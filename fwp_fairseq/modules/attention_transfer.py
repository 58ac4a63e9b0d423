"""Attention transfer: sites with fast weights attend by softmax, and their feature maps learn to imitate it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..numerics import state_type
from .fast_weight_site_attention import FastWeightSiteAttention


def softmax_weights(q: Tensor, k: Tensor, key_padding_mask: Tensor | None, causal: bool) -> Tensor:
    """Computes softmax_j(q_i . k_j / sqrt(d_key)) as fairseq's attention does, in float32 or wider.

    Args:
        q: (B, T, H, d_key).
        k: (B, S, H, d_key).
        key_padding_mask: (B, S), True at padding.
        causal: True if position i reads only the positions j <= i.

    Returns:
        (H, B, T, S). If a query at padding has no position to read, its weights are arbitrary.
    """
    scores = torch.einsum("bthd,bshd->hbts", q / math.sqrt(q.shape[-1]), k)
    scores = scores.to(state_type(scores.dtype))
    hidden = torch.zeros(scores.shape[-2:], dtype=torch.bool, device=q.device)
    if causal:
        hidden = hidden.logical_not().triu(1)
    if key_padding_mask is not None:
        hidden = hidden | key_padding_mask[:, None]
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)


class AttentionTransfer:
    """Measures how far the attention of every site with fast weights is from softmax attention.

    While :meth:`compared` is active, each site returns the output of softmax attention with the same projections. A
    converted model therefore computes the same as the original softmax model, and every layer sees the inputs of that
    model. Meanwhile, the feature maps are compared on the same queries and keys. Let a be the softmax weights of query
    i in one head, and b_j = phi(q_i).phi(k_j) / sum_j' phi(q_i).phi(k_j'). The distance is sum_j a_j log(a_j / b_j),
    averaged over heads. This is the cross-entropy of Zhang et al. 2024 ("The Hedgehog & the Porcupine") minus the
    entropy of a; it has the same gradient and is 0 if all weights agree.

    Cost: the T x S weights of every head are computed and kept with their gradients, once for softmax and once for the
    feature maps, as in training with softmax attention without a fused kernel. No gradient flows from one layer to
    another.

    Args:
        model: a model; its sites with softmax attention stay as they are.

    Raises:
        ValueError: no site has fast weights, or one of them cannot imitate softmax, because it has no learned
            non-negative feature map or its output is not the sum of values weighted by b.
    """

    def __init__(self, model: nn.Module):
        self.attentions = [module for module in model.modules() if isinstance(module, FastWeightSiteAttention)]
        if not self.attentions:
            raise ValueError(
                "attention transfer: all attention of this model is softmax, expected a site with fast weights"
            )
        for attention in self.attentions:
            _refuse(attention)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters to train, which softmax attention lacks: feature maps, scales of q and k, windows."""
        for attention in self.attentions:
            for module in (attention.memory, attention.qk_norm):
                if module is not None:
                    yield from module.parameters()

    @contextmanager
    def compared(self, pads: dict[str, Tensor]) -> Iterator[dict[str, list[Tensor]]]:
        """Makes the model attend by softmax; yields a dict that its forward pass fills.

        Args:
            pads: (B, T) for each site of the model, True at queries that are not compared.

        Yields:
            For each site, the distances of the queries (B, T) in each layer, with 0 at padding.
        """
        distances: dict[str, list[Tensor]] = {}

        def substitute(attention: FastWeightSiteAttention, query: Tensor, key: Tensor, key_padding_mask: Tensor | None):
            out, distance = self._compare(attention, query, key, key_padding_mask)
            distances.setdefault(attention.site, []).append(distance.masked_fill(pads[attention.site], 0))
            return out

        for attention in self.attentions:
            attention.substitute = substitute
        try:
            yield distances
        finally:
            for attention in self.attentions:
                attention.substitute = None

    def _compare(self, attention, query, key, key_padding_mask) -> tuple[Tensor, Tensor]:
        """Returns the output of softmax attention (T, B, C), and the distances (B, T)."""
        q = attention.project("q", query, key_padding_mask if key is query else None)
        k, v = (attention.project(name, key, key_padding_mask) for name in ("k", "v"))
        a = softmax_weights(q, k, key_padding_mask, attention.causal)
        b = attention.weights(q, k, key_padding_mask).transpose(0, 1)

        out = attention.output(torch.einsum("hbts,bshd->bthd", a.to(v.dtype), v), query)
        # Where a is 0, nothing is added, even if b is also 0.
        log_b = b.clamp(min=torch.finfo(b.dtype).tiny).log()
        return out, nn.functional.kl_div(log_b, a, reduction="none").sum(-1).mean(0)


def _refuse(attention: FastWeightSiteAttention) -> None:
    """Raises ValueError, which names the flags of the site, if it cannot imitate softmax attention."""
    options, phi = attention.options, attention.feature_map
    expected = None
    if not (phi.non_negative and any(True for _ in phi.parameters())):
        expected = "feature-map", phi.name, "a learned one without negative features, hedgehog or t2r"
    elif options.update_rule != "sum":
        expected = "update-rule", options.update_rule, "sum"
    elif options.chosen_normalizer != "attention":
        expected = "normalizer", options.chosen_normalizer, "attention"
    if expected is not None:
        option, actual, wanted = expected
        raise ValueError(
            f"attention transfer: {option} is {actual} at the {attention.site} site, expected {wanted} (or softmax)"
        )
