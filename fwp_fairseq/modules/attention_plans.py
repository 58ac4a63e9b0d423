"""Keeps cuDNN from planning softmax attention anew for every length of a batch while a layer of this package trains.

Where PyTorch prefers cuDNN's attention, each new length of a batch costs a plan, and most of fairseq's batches have a
new length. One training on an H200 (torch 2.11, 1.2 million parameters, batches of 10,000 tokens; its record was not
kept) went from 4 to 23 updates a second without it; TORCH_CUDNN_SDPA_AVOID_RECOMPILE=1 changed nothing. Other models
keep PyTorch's choice.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.backends import cuda


@contextmanager
def without_plans(training: bool) -> Iterator[None]:
    """Takes cuDNN's kernels from those that PyTorch chooses among, in training; gives them back at the end."""
    if not (training and cuda.cudnn_sdp_enabled()):
        yield
        return
    cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        cuda.enable_cudnn_sdp(True)
