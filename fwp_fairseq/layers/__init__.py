"""Attention with fast weights in plain PyTorch: batch first, state in and out, no fairseq.

The attention modules of the fairseq models are built on the same :class:`Heads`.
"""

from .attention import FastWeightAttention
from .decoder import DecoderState, FastWeightDecoder
from .heads import Heads

__all__ = ["DecoderState", "FastWeightAttention", "FastWeightDecoder", "Heads"]
