"""Which of PyTorch's kernels softmax attention may take."""

import torch

import fwp_fairseq.mends  # noqa: F401


def test_attention_makes_no_plans():
    cuda = torch.backends.cuda
    assert not cuda.cudnn_sdp_enabled()
    assert cuda.flash_sdp_enabled() and cuda.mem_efficient_sdp_enabled() and cuda.math_sdp_enabled()
