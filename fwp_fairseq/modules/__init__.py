"""Attention modules for fairseq models."""

from .fast_weight_site_attention import FastWeightSiteAttention
from .relative_attention import RelativeAttention
from .softmax_cross_attention import SoftmaxCrossAttention
from .softmax_self_attention import SoftmaxSelfAttention

__all__ = ["FastWeightSiteAttention", "RelativeAttention", "SoftmaxCrossAttention", "SoftmaxSelfAttention"]
