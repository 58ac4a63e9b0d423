"""Attention with fast weights in plain PyTorch, batch first and without fairseq; calls take and return a state.

The attention of the fairseq models uses the same memories with fairseq's interface (:mod:`fwp_fairseq.modules`).
"""

from .attention import FastWeightAttention
from .decoder import DecoderState, FastWeightDecoder
from .softmax import KeysAndValues, SoftmaxAttention

__all__ = ["DecoderState", "FastWeightAttention", "FastWeightDecoder", "KeysAndValues", "SoftmaxAttention"]
