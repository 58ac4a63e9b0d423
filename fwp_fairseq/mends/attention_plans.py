"""Softmax attention on a GPU does not stop to plan at every new length of a batch.

Symptom: On an H200 a small model with softmax attention makes 4 updates a second, where it could make 20.
Cause: PyTorch takes cuDNN's attention there, which plans anew for each length, and batches have ever new ones.
Test: tests/mends/test_attention_plans.py::test_attention_makes_no_plans
"""

import torch

# Seen on an H200 with torch 2.11, 1.2 million parameters and batches of 10,000 tokens: 4 updates a second became 23.
# TORCH_CUDNN_SDPA_AVOID_RECOMPILE=1 changed nothing; enable_cudnn_sdp(True) undoes this.
torch.backends.cuda.enable_cudnn_sdp(False)
