"""--fwp-qk-norm l2: the sharpness that it starts with, and large numbers in half precision."""

import math

import pytest
import torch
from fairseq.modules import MultiheadAttention

from fwp_fairseq.modules import FastWeightSiteAttention
from fwp_fairseq.options import SiteOptions
from tests.modules.attention import build

L2 = {"qk_norm": "l2"}


@torch.no_grad()
@pytest.mark.parametrize("source_dim", [256, 64])
def test_starts_as_sharp_as_softmax_attention(source_dim):
    """The exponents of both, over many queries and keys, have the same standard deviation."""
    options, heads = SiteOptions(feature_map="favor", d_dot=64, qk_norm="l2"), 4
    torch.manual_seed(0)
    softmax = MultiheadAttention(256, heads, kdim=source_dim, vdim=source_dim, encoder_decoder_attention=True)
    module = FastWeightSiteAttention(256, heads, site="cross", options=options, source_dim=source_dim)
    query, key = torch.randn(400, 1, 256), torch.randn(400, 1, source_dim)

    def exponents(attention, norm):
        q, k = (norm(x.unflatten(-1, (heads, 64))[:, 0]) for x in (attention.q_proj(query), attention.k_proj(key)))
        return torch.einsum("thd,shd->hts", q, k) / math.sqrt(64)

    wanted = exponents(softmax, torch.nn.Identity()).std()
    assert abs(exponents(module, module.qk_norm).std() / wanted - 1) < 0.05
    assert abs(wanted / module.qk_norm.length**2 * 64 - 1) < 0.1


def test_half_precision_lengths():
    """Squares of 300 overflow float16."""
    norm = build("encoder", "favor", **L2).qk_norm.half()
    assert norm(torch.full((2, 2, 6), 300.0).half()).isfinite().all()
