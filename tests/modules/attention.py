"""Builds attention modules, and computes their expected output from their projections and tests/naive.py."""

import torch

from fwp_fairseq.config import SiteConfig
from fwp_fairseq.modules import FastWeightAttention
from tests import naive

EMBED, HEADS = 12, 2
NORMALIZES = {"attention": (False, True), "sum": (True, False), "both": (True, True), "none": (False, False)}


def build(site="encoder", feature_map="dpfp", rule="sum", normalizer="auto", d_dot=None, backend="auto", **options):
    """Builds a module in float64 and evaluation mode."""
    config = SiteConfig(feature_map, d_dot, rule, normalizer, backend)
    module = FastWeightAttention(EMBED, HEADS, site=site, config=config, **options).double().eval()
    if module.beta_proj is not None:
        torch.nn.init.normal_(module.beta_proj.weight)
    return module


def random(length, batch=3, width=EMBED):
    return torch.randn(length, batch, width, dtype=torch.float64)


def ragged(batch=3, length=7, left=False):
    """A padding mask whose rows have length, length - 2, length - 4, ... real positions."""
    mask = torch.zeros(batch, length, dtype=torch.bool)
    for row in range(1, batch):
        pads = min(2 * row, length - 1)
        mask[row, slice(0, pads) if left else slice(length - pads, None)] = True
    return mask


def naive_map(module):
    phi = module.feature_map
    if phi.name == "dpfp":
        return naive.dpfp(phi.nu)
    return naive.elu if phi.name == "elu" else naive.favor(phi.projection.double().numpy(), phi.d_key**-0.25)


def _linear(projection, x):
    y = x @ projection.weight.T
    return y if projection.bias is None else y + projection.bias


@torch.no_grad()
def expected(module, query, key, mask=None):
    """The expected output of the module, computed with heads split by hand."""
    head = EMBED // HEADS

    def split(x):
        return torch.stack([x[:, :, h * head : (h + 1) * head] for h in range(HEADS)], 2).transpose(0, 1).numpy()

    q, k, v = split(_linear(module.q_proj, query)), *(split(_linear(p, key)) for p in (module.k_proj, module.v_proj))
    beta = ()
    rule, normalizer = module.config.update_rule, module.config.normalizer
    if rule != "sum":
        beta = (1 / (1 + (-_linear(module.beta_proj, key)).exp()).transpose(0, 1).numpy(),)
    if normalizer == "auto":
        normalizer = "sum" if rule == "delta" else "attention"
    features, output = NORMALIZES[normalizer]
    out, _, _ = naive.attend(
        rule, q, k, v, *beta, phi=naive_map(module), causal=module.site == "decoder",
        padded=None if mask is None else mask.numpy(), normalize_features=features, normalize_output=output,
    )  # fmt: skip
    merged = torch.tensor(out).transpose(0, 1).flatten(2)
    return _linear(module.out_proj, merged)
