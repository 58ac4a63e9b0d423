"""Transformer-XL, the paper's baseline with a memory of earlier segments, and its architectures."""

from dataclasses import dataclass, field
from functools import partial

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models import transformer_lm as vanilla
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor

from ..modules import RelativeAttention
from ..modules.relative_attention import Remembered
from .fwp_language_model import build_decoder, fill_wikitext103
from .language_model_decoder import FwpLanguageModelDecoder


@dataclass
class TransformerXlConfig(vanilla.TransformerLanguageModelConfig):
    """All options of fairseq's transformer_lm, and the length of the memory."""

    mem_len: int = field(
        default=150,
        metadata={"help": "number of earlier tokens whose layer inputs are kept as memory; may differ in evaluation"},
    )
    no_token_positional_embeddings: bool = field(
        default=False, metadata={"help": "has no effect, because Transformer-XL has no absolute positions"}
    )


class TransformerXlLayer(TransformerDecoderLayerBase):
    """fairseq's decoder layer with relative attention, which can also read a memory.

    The memory contains the inputs of the layer, before its norm if the norm comes first. It is passed as tensors, so
    that activation checkpointing sees them.
    """

    def build_self_attention(self, embed_dim, cfg, add_bias_kv=False, add_zero_attn=False):
        return RelativeAttention(
            embed_dim,
            cfg.decoder.attention_heads,
            cfg.mem_len,
            dropout=cfg.attention_dropout,
            position_dropout=cfg.dropout,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )

    def forward(self, x, *args, state_inputs: Tensor | None = None, state_length: Tensor | None = None, **kwargs):
        """Runs the layer, with the tensors of a :class:`Remembered`, if given.

        Returns:
            ``(x, None, inputs, length)`` with the memory after the last position if a memory was given, else fairseq's
            result. The memory of rows with padding cannot be read afterwards, because their streams have ended.
        """
        inputs, length = state_inputs, state_length
        if inputs is None:
            return super().forward(x, *args, **kwargs)
        inputs = inputs.to(x.dtype)  # that of a checkpoint may have been written in another precision
        known = self.self_attn_layer_norm(inputs) if self.normalize_before else inputs
        state, mem_len = {}, self.self_attn.mem_len
        self.self_attn.remember(state, Remembered(known, length))
        inputs = torch.cat([inputs, x.transpose(0, 1)], 1)
        inputs = inputs[:, max(0, inputs.shape[1] - mem_len) :]
        x, attention, _ = super().forward(x, *args, incremental_state=state, **kwargs)
        return x, attention, inputs, self.self_attn.remembered(state)


class TransformerXlDecoder(FwpLanguageModelDecoder):
    """The decoder of Transformer-XL; its layers share u and v."""

    layer_class = TransformerXlLayer

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        first, *others = (layer.self_attn for layer in self.layers.children())
        for attention in others:
            attention.u, attention.v = first.u, first.v

    def buffered_future_mask(self, tensor: Tensor) -> None:
        return None


@register_model("transformer_xl_lm", dataclass=TransformerXlConfig)
class TransformerXlLanguageModel(vanilla.TransformerLanguageModel):
    """Transformer-XL (Dai et al. 2019); ``fwp archs transformer_xl_lm`` lists every flag."""

    @classmethod
    def build_model(cls, args, task):
        if args.mem_len < 0:
            raise ValueError(f"--mem-len {args.mem_len}: expected 0 or more")
        if args.decoder_layerdrop:
            raise ValueError(
                f"--decoder-layerdrop {args.decoder_layerdrop} contradicts Transformer-XL: a layer that is left out "
                "remembers nothing of the segment; expected 0"
            )
        if args.decoder_learned_pos:
            raise ValueError("--decoder-learned-pos contradicts Transformer-XL, which has no absolute positions")
        args.no_token_positional_embeddings = True
        return cls(build_decoder(TransformerXlDecoder, args, task))


for _size, _width, _mem_len in (("small", 128, 256), ("medium", 256, 384)):
    _architecture = partial(fill_wikitext103, width=_width, mem_len=_mem_len)
    register_model_architecture("transformer_xl_lm", f"transformer_xl_lm_wikitext103_{_size}")(_architecture)
