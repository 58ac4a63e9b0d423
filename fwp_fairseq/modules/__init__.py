"""Attention modules for fairseq models."""

from .fast_weight_site_attention import FastWeightSiteAttention
from .relative_attention import RelativeAttention
from .softmax_cross_attention import SoftmaxCrossAttention
from .softmax_self_attention import SoftmaxSelfAttention

# What `build_attention` (models/site_builder.py) returns where fairseq's own attention does not serve.
BuiltAttention = FastWeightSiteAttention | SoftmaxCrossAttention | SoftmaxSelfAttention

__all__ = [
    "BuiltAttention",
    "FastWeightSiteAttention",
    "RelativeAttention",
    "SoftmaxCrossAttention",
    "SoftmaxSelfAttention",
]
