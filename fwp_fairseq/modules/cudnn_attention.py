"""Keeps cuDNN from planning softmax attention for every new batch length while a layer of this package trains.

Where PyTorch prefers cuDNN's attention, cuDNN first plans the computation for each new batch length, which takes time,
and most of fairseq's batches have a new length. Other models keep PyTorch's choice.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.backends import cuda


@contextmanager
def without_cudnn_attention(training: bool) -> Iterator[None]:
    """Returns a context in which PyTorch does not choose cuDNN's attention; it has no effect unless ``training``."""
    if not (training and cuda.cudnn_sdp_enabled()):
        yield
        return
    cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        cuda.enable_cudnn_sdp(True)
