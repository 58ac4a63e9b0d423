"""Attention transfer at one site: what it returns and compares, against loops in float64, and what it refuses."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.modules import MultiheadAttention

from fwp_fairseq.criterions.attention_transfer import AttentionTransferCriterion
from fwp_fairseq.modules.attention_transfer import AttentionTransfer
from tests import naive
from tests.models.helpers import WORDS
from tests.modules.attention import EMBED, HEADS, build, naive_map, ragged, random

D_KEY = EMBED // HEADS
MAPS = {"hedgehog": 10, "t2r": 40}


def test_segments_are_refused():
    criterion = AttentionTransferCriterion(SimpleNamespace(target_dictionary=WORDS))
    with pytest.raises(ValueError, match="--criterion attention_transfer contradicts --task fwp_language_modeling"):
        criterion(torch.nn.Identity(), {"net_input": {"src_tokens": torch.ones(1, 3), "segment": None}})


def inputs(site, left):
    """Queries, keys, the mask of the keys, and that of the queries."""
    query = random(6)
    key = random(7) if site == "cross" else query
    pads = ragged(length=6, left=left)
    return query, key, ragged(length=7, left=left) if site == "cross" else pads, pads


def call(module, query, key, mask):
    return module(query, key, key, key_padding_mask=mask, static_kv=module.site == "cross")[0]


def stock(module):
    """fairseq's own attention with the same projections."""
    found = MultiheadAttention(
        *(EMBED, HEADS),
        **{"self_attention": module.site != "cross", "encoder_decoder_attention": module.site == "cross"},
    )
    projections = {name: x for name, x in module.state_dict().items() if "_proj." in name}
    found.load_state_dict(projections)
    return found.double().eval()


@torch.no_grad()
def distances(module, query, key, mask, pads):
    """What every query's distance has to be, one head, query and key after the other; (B, T)."""
    q, k = (
        projection(x).unflatten(-1, (HEADS, D_KEY)).numpy()
        for projection, x in ((module.q_proj, query), (module.k_proj, key))
    )
    found = np.zeros(pads.shape)
    for row, i in np.argwhere(~pads.numpy()):
        for h in range(HEADS):
            phi_q = naive_map(module.memory.features.query_map or module.feature_map, h)(q[i, row, h])
            seen = [j for j in range(len(key)) if not mask[row, j] and (module.site != "decoder" or j <= i)]
            a = naive._softmax([float(np.dot(q[i, row, h], k[j, row, h])) / math.sqrt(D_KEY) for j in seen])
            b = [float(np.dot(phi_q, naive_map(module.feature_map, h)(k[j, row, h]))) for j in seen]
            b = [value / sum(b) for value in b]
            for weight, share in zip(a, b, strict=True):
                found[row, i] += weight * math.log(weight / share) / HEADS
    return torch.tensor(found)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize("site", ["encoder", "decoder", "cross"])
def test_softmax_is_returned_and_compared(site, feature_map, left):
    module = build(site, feature_map, d_dot=MAPS[feature_map])
    query, key, mask, pads = inputs(site, left)
    with AttentionTransfer(module).compared({site: pads}) as found:
        out = call(module, query, key, mask)
    assert set(found) == {site}
    torch.testing.assert_close(found[site][0], distances(module, query, key, mask, pads))
    future = torch.full((6, 6), -math.inf, dtype=torch.float64).triu(1) if site == "decoder" else None
    wanted = stock(module)(query, key, key, key_padding_mask=mask, attn_mask=future)[0]
    real = ~pads.T
    torch.testing.assert_close(out[real], wanted[real])

    after = call(module, query, key, mask)  # fast weights again
    assert (after - out)[real].abs().max() > 1e-3


def test_what_learns_and_what_is_left_after_an_error():
    module = build("decoder", "hedgehog", qk_norm="l2")
    with pytest.raises(ZeroDivisionError), AttentionTransfer(module).compared({}):
        with pytest.raises(NotImplementedError, match="attention transfer takes whole sequences"):
            module(random(5), incremental_state={})
        1 / 0  # noqa: B018
    assert module.substitute is None and module.qk_norm.scale in set(AttentionTransfer(module).parameters())


def test_weights_that_underflow_give_a_finite_loss():
    """T2R's products can be 0 where softmax attends."""
    module = build("encoder", "t2r", d_dot=1)
    with torch.no_grad():
        module.feature_map.bias.fill_(-100)
    query, key, mask, pads = inputs("encoder", left=False)
    with AttentionTransfer(module).compared({"encoder": pads}) as found:
        call(module, query, key, mask)
    found["encoder"][0].sum().backward()
    assert torch.isfinite(found["encoder"][0]).all() and found["encoder"][0].sum() > 0
    assert all(torch.isfinite(x.grad).all() for x in module.feature_map.parameters())


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"feature_map": "dpfp"},
            "feature-map is dpfp at the encoder site, expected a learned one .*, hedgehog or t2r",
        ),
        ({"feature_map": "rfa", "rule": "gated"}, "feature-map is rfa at the encoder site, expected a learned one"),
        ({"feature_map": "hedgehog", "rule": "delta"}, "update-rule is delta at the encoder site, expected sum"),
        ({"feature_map": "t2r", "rule": "gated"}, "update-rule is gated at the encoder site, expected sum"),
        (
            {"feature_map": "hedgehog", "output_norm": "rms"},
            "normalizer is none at the encoder site, expected attention",
        ),
    ],
)
def test_what_cannot_imitate_softmax_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        AttentionTransfer(build("encoder", **options))


def test_a_model_of_softmax_alone_is_refused():
    with pytest.raises(ValueError, match="all attention of this model is softmax"):
        AttentionTransfer(MultiheadAttention(EMBED, HEADS))
