"""An output gate, which the input of self-attention computes."""

import torch
from torch import Tensor, nn

from fwp_fairseq.modules import FastWeightSiteAttention, SoftmaxSelfAttention
from fwp_fairseq.modules.fairseq_attention import AttentionCall, FairseqAttention

from .start import zeros


class OutputGate(FairseqAttention):
    """Multiplies what self-attention reads by 2 sigmoid(W x + b), before the output projection.

    The gate follows the RMSNorm, as in Gated DeltaNet and KDA; with softmax attention it is that of Qiu et al. 2025
    ("Gated Attention for Large Language Models"). It starts at 1.
    """

    gate: nn.Linear

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        gate = 2 * torch.sigmoid(self.gate(call.query))
        hook = self.out_proj.register_forward_pre_hook(lambda _, inputs: inputs[0] * gate)
        try:
            return super().attend(call)
        finally:
            hook.remove()


class GatedSiteAttention(OutputGate, FastWeightSiteAttention):
    pass


class GatedSelfAttention(OutputGate, SoftmaxSelfAttention):
    pass


_GATED = {FastWeightSiteAttention: GatedSiteAttention, SoftmaxSelfAttention: GatedSelfAttention}


def add_gate(attention: nn.Module) -> None:
    """Adds an output gate to self-attention of the package."""
    if type(attention) not in _GATED:
        raise TypeError(f"output-gate: self-attention is {type(attention).__name__}, expected one of the package")
    attention.__class__ = _GATED[type(attention)]
    attention.gate = zeros(attention.embed_dim, attention.embed_dim)
