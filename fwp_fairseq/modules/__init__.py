"""Attention modules for fairseq models."""

from .cross_attention import CrossAttention
from .relative_attention import RelativeAttention
from .self_attention import SelfAttention
from .site_attention import SiteAttention

__all__ = ["CrossAttention", "RelativeAttention", "SelfAttention", "SiteAttention"]
