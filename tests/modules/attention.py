"""Builds attention modules, and computes their expected output from their projections and tests/naive.py."""

import math

import numpy as np
import torch

from fwp_fairseq.modules import FastWeightSiteAttention
from fwp_fairseq.ops.call import GATES
from fwp_fairseq.options import SiteOptions
from tests import naive
from tests.tolerances import TOLERANCES

EMBED, HEADS = 12, 2
NORMALIZES = {"attention": (False, True), "sum": (True, False), "both": (True, True)}  # others: no, no


def build(
    site="encoder", feature_map="dpfp", rule="sum", normalizer="auto", d_dot=None, *,
    source_dim=None, dropout=0.0, **options,
):  # fmt: skip
    """In float64 and evaluation mode; what starts alike in all heads is different in each."""
    chosen = SiteOptions(feature_map, d_dot, rule, normalizer, **options)
    module = FastWeightSiteAttention(EMBED, HEADS, site=site, options=chosen, source_dim=source_dim, dropout=dropout)
    module, memory = module.double().eval(), module.memory
    if memory.beta_proj is not None:
        torch.nn.init.normal_(memory.beta_proj.weight)
    if memory.decay is not None:
        torch.nn.init.normal_(memory.decay.proj.weight)
        torch.nn.init.normal_(memory.decay.log_rate)
    for parameter in module.feature_map.parameters():
        torch.nn.init.normal_(parameter)
    if module.qk_norm is not None:
        torch.nn.init.uniform_(module.qk_norm.scale, 0.5, 2)
    if module.output_norm is not None:
        torch.nn.init.normal_(module.output_norm.weight)
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


def naive_map(phi, head):
    if phi.name == "dpfp":
        return naive.dpfp(phi.nu)
    if phi.name == "favor":
        return naive.favor(phi.projection.double().numpy(), phi.d_key**-0.25)
    if phi.name == "rfa":
        return naive.rfa(phi.projection[head].double().numpy(), phi.sigma[head].numpy())
    if phi.name in ("t2r", "hedgehog"):
        weight = phi.weight[head].numpy()
        return naive.t2r(weight, phi.bias[head].numpy()) if phi.name == "t2r" else naive.hedgehog(weight)
    return getattr(naive, phi.name)


def _per_head(function, x):
    """function(head, vector) of every vector of x (B, L, H, d)."""
    return np.array([[[function(h, vector) for h, vector in enumerate(row)] for row in rows] for rows in x])


@torch.no_grad()
def assert_gradients(module, query, key, mask=None):
    """Of every parameter, along one direction, against central differences of :func:`expected`."""
    weight = torch.randn(*query.shape, dtype=torch.float64)
    with torch.enable_grad():
        out, _ = module(query, key, key, key_padding_mask=mask, static_kv=module.site == "cross")
        parameters = dict(module.named_parameters())
        gradients = torch.autograd.grad((out * weight).sum(), list(parameters.values()))
    for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        direction, step = torch.randn_like(parameter), 1e-5
        direction /= direction.norm()
        around = []
        for sign in (1, -1):
            parameter += sign * step * direction
            around.append((expected(module, query, key, mask) * weight).sum())
            parameter -= sign * step * direction
        wanted = (around[0] - around[1]) / (2 * step)
        found, tolerance = (gradient * direction).sum(), TOLERANCES["finite_difference"]
        assert abs(found - wanted) <= tolerance * max(1, abs(wanted)), f"{name}: {found}, expected {wanted}"


@torch.no_grad()
def expected(module, query, key, mask=None):
    """The expected output of the module, computed with heads split by hand."""
    head = EMBED // HEADS

    def split(x):
        return torch.stack([x[:, :, h * head : (h + 1) * head] for h in range(HEADS)], 2).transpose(0, 1).numpy()

    q, k, v = split(module.q_proj(query)), *(split(p(key)) for p in (module.k_proj, module.v_proj))
    if module.options.qk_norm == "l2":
        lengths = [math.sqrt(head / 2) * float(scale) for scale in module.qk_norm.scale]
        q, k = (_per_head(lambda h, vector: naive.directed(vector, lengths[h]), x) for x in (q, k))
    query_map = module.memory.features.query_map or module.feature_map
    q = _per_head(lambda h, vector: naive_map(query_map, h)(vector), q)
    k = _per_head(lambda h, vector: naive_map(module.feature_map, h)(vector), k)
    strengths = ()
    rule, normalizer = module.options.update_rule, module.options.normalizer
    if "beta" in GATES[rule]:
        largest = {"0-1": 1, "0-2": 2}[module.options.beta_range]
        strengths = (largest / (1 + (-module.memory.beta_proj(key)).exp()).transpose(0, 1).numpy(),)
    if "alpha" in GATES[rule]:
        softplus = (1 + module.memory.decay.proj(key).exp()).log()
        strengths += ((-module.memory.decay.log_rate.exp() * softplus).exp().transpose(0, 1).numpy(),)
    if normalizer == "auto":
        normalizer = {"sum": "attention", "delta": "sum", "gated": "attention", "gated_delta": "l2"}[rule]
        if normalizer == "attention" and module.options.output_norm == "rms":
            normalizer = "none"
    padded = None if mask is None else mask.numpy()
    if normalizer == "l2":
        q, k = (_per_head(lambda _, vector: naive.directed(vector, 1), x) for x in (q, k))
    features, output = NORMALIZES.get(normalizer, (False, False))

    def attend(causal, padded, *inputs):
        return naive.attend(
            rule, *inputs, causal=causal, padded=padded, normalize_features=features, normalize_output=output
        )[0]

    inputs = (q, k, v, *strengths)
    if module.options.passes == "one":
        out = attend(module.site == "decoder", padded, *inputs)
    else:
        half = HEADS // 2
        ahead = attend(True, padded, *(x[:, :, :half] for x in inputs))
        back = attend(True, None if padded is None else padded[:, ::-1], *(x[:, ::-1, half:] for x in inputs))
        out = np.concatenate([ahead, back[:, ::-1]], axis=2)
    if module.options.output_norm == "rms":
        weights = module.output_norm.weight.numpy()
        out = _per_head(lambda h, vector: naive.rms_norm(vector, weights[h]), out)
    merged = torch.tensor(out).transpose(0, 1).flatten(2)
    return module.out_proj(merged)
