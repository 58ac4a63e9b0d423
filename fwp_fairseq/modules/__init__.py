"""Attention modules for fairseq models."""

from .fast_weight_attention import FastWeightAttention

__all__ = ["FastWeightAttention"]
