"""Attention with fast weights in plain PyTorch: batch first, state in and out, no fairseq.

The attention of the fairseq models has the same memories behind fairseq's interface (:mod:`fwp_fairseq.modules`).
"""

from .attention import FastWeightAttention
from .decoder import DecoderState, FastWeightDecoder
from .softmax import KeysAndValues, SoftmaxAttention

__all__ = ["DecoderState", "FastWeightAttention", "FastWeightDecoder", "KeysAndValues", "SoftmaxAttention"]
