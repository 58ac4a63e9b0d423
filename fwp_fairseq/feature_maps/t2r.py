"""ReLU of a learned projection (Kasai et al. 2021)."""

import torch
from torch import Tensor, nn

from .learned import LearnedMap
from .relu import Relu


class T2r(LearnedMap):
    """phi(x) = relu(W_h x + b_h), the same for queries and keys; d_dot = n.

    Kasai et al. 2021, "Finetuning Pretrained Transformers into RNNs"; their code also has one W for queries and keys. W
    starts with Xavier initialisation, b at 0.
    """

    name = "t2r"
    title = "T2R, learned"
    widths = "any, naturally d_key"
    non_negative = True

    def __init__(self, d_key: int, n: int, heads: int):
        super().__init__(d_key, n, heads)
        self.bias = nn.Parameter(torch.zeros(heads, n))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.bias.zero_()

    @staticmethod
    def fresh_weight(n: int, d_key: int) -> Tensor:
        return nn.init.xavier_uniform_(torch.empty(n, d_key))

    def project(self, x: Tensor) -> Tensor:
        return super().project(x) + self.bias[:, None].to(x.dtype)

    def make_kernel_map(self) -> Relu:
        return Relu(self.n)
