"""Attention modules for fairseq models."""

from .fast_weight_site_attention import FastWeightSiteAttention
from .relative_attention import RelativeAttention
from .softmax_cross_attention import SoftmaxCrossAttention
from .softmax_self_attention import SoftmaxSelfAttention

# The attention that a site's options build, where fairseq's own does not serve.
BuiltAttention = FastWeightSiteAttention | SoftmaxCrossAttention | SoftmaxSelfAttention

__all__ = [
    "BuiltAttention",
    "FastWeightSiteAttention",
    "RelativeAttention",
    "SoftmaxCrossAttention",
    "SoftmaxSelfAttention",
]
