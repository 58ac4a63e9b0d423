"""Attention modules for fairseq models."""

from .fast_weight_site_attention import FastWeightSiteAttention
from .relative_attention import RelativeAttention
from .softmax_cross_attention import SoftmaxCrossAttention
from .softmax_self_attention import SoftmaxSelfAttention

# The classes of what `build_attention` returns (models/site_builder.py), where fairseq's own does not serve.
BuiltAttention = FastWeightSiteAttention | SoftmaxCrossAttention | SoftmaxSelfAttention

__all__ = [
    "BuiltAttention",
    "FastWeightSiteAttention",
    "RelativeAttention",
    "SoftmaxCrossAttention",
    "SoftmaxSelfAttention",
]
