"""Attention modules for fairseq models."""

from .cross_attention import CrossAttention
from .fast_weight_attention import FastWeightAttention
from .relative_attention import RelativeAttention

__all__ = ["CrossAttention", "FastWeightAttention", "RelativeAttention"]
