"""Softmax over learned features (Zhang et al. 2024)."""

import torch
from torch import Tensor, nn

from .learned import LearnedMap
from .softmax_pair import SoftmaxPair


class Hedgehog(LearnedMap):
    """phi(x) = [softmax(W_h x), softmax(-W_h x)], softmax over the n rows of W_h; d_dot = 2n.

    Zhang et al. 2024, "The Hedgehog & the Porcupine: Expressive Linear Attentions with Softmax Mimicry", with one W
    for queries and one for keys, as in their code. They add a bias to W x; here the biases of the projections that
    compute x have the same effect, as long as n is at most d_key.

    W starts as the identity, as in their code. If n is larger than d_key, further blocks of d_key rows start as random
    orthogonal matrices, because features whose rows are equal would stay equal.

    Cost: that of W x. On the CPU, the operator computes the features from W x in cache; on CUDA, autograd keeps them.
    """

    name = "hedgehog"
    title = "Hedgehog, learned"
    widths = "2n, naturally 2 d_key"
    non_negative = True
    shared = False

    @staticmethod
    def fresh_weight(n: int, d_key: int) -> Tensor:
        blocks = [torch.eye(d_key)[:n]]
        for first in range(d_key, n, d_key):
            block = torch.empty(min(d_key, n - first), d_key, dtype=torch.float32)  # there is no QR in half precision
            blocks.append(nn.init.orthogonal_(block).to(blocks[0].dtype))
        return torch.cat(blocks)

    def make_kernel_map(self) -> SoftmaxPair:
        return SoftmaxPair(self.n)

    @classmethod
    def unit(cls, d_key: int) -> int:
        return 2
