"""Attention modules for fairseq models."""

from .fast_weight_attention import FastWeightAttention
from .relative_attention import RelativeAttention

__all__ = ["FastWeightAttention", "RelativeAttention"]
