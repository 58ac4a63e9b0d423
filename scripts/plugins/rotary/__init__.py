"""For fairseq's --user-dir: softmax attention with rotary positions (Su et al. 2021, RoFormer, Eq. 34), as a baseline.

The architecture `rotary_transformer_tiny` is `fwp_transformer_tiny` with them in the self-attention of encoder and
decoder: the scores of a query and a key then depend on the distance between the two.
"""

import argparse
from pathlib import Path

import torch
from fairseq import utils
from fairseq.models import ARCH_CONFIG_REGISTRY, register_model, register_model_architecture
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

utils.import_user_module(argparse.Namespace(user_dir=str(Path(__file__).resolve().parents[3] / "fwp_fairseq")))

from fwp_fairseq.models import fwp_transformer as base  # noqa: E402


class Rotated(nn.Module):
    """A projection to queries or keys, each pair of whose coordinates is turned by an angle of its position.

    Attributes:
        first: the position of the first row.
    """

    def __init__(self, projection: nn.Linear, heads: int):
        super().__init__()
        self.projection, self.heads, self.first = projection, heads, 0

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, C) to (T, B, C)."""
        y = self.projection(x).unflatten(-1, (self.heads, -1, 2))
        pairs = y.shape[-2]
        position = torch.arange(self.first, self.first + len(x), device=x.device, dtype=torch.float32)
        angle = position[:, None] * 10000 ** -(torch.arange(pairs, device=x.device) / pairs)
        cos, sin = (f(angle).to(y.dtype)[:, None, None] for f in (torch.cos, torch.sin))
        a, b = y.unbind(-1)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(2)


class RotaryAttention(MultiheadAttention):
    """fairseq's self-attention with rotary positions."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, self_attention=True, **kwargs)
        self.q_proj, self.k_proj = (Rotated(projection, self.num_heads) for projection in (self.q_proj, self.k_proj))
        self.skip_embed_dim_check = True  # torch's own attention would read the weights of the projections

    def forward(self, query, *args, incremental_state=None, **kwargs):
        saved = {} if incremental_state is None else self._get_input_buffer(incremental_state)
        first = saved["prev_key"].shape[2] if "prev_key" in saved else 0
        self.q_proj.first = self.k_proj.first = first
        return super().forward(query, *args, incremental_state=incremental_state, **kwargs)


class RotaryEncoderLayer(base.FwpEncoderLayer):
    def build_self_attention(self, embed_dim, cfg):
        return RotaryAttention(embed_dim, cfg.encoder.attention_heads, dropout=cfg.attention_dropout)


class RotaryDecoderLayer(base.FwpDecoderLayer):
    def build_self_attention(self, embed_dim, cfg, add_bias_kv=False, add_zero_attn=False):
        return RotaryAttention(embed_dim, cfg.decoder.attention_heads, dropout=cfg.attention_dropout)


class RotaryEncoder(base.FwpEncoder):
    def build_encoder_layer(self, cfg):
        return RotaryEncoderLayer(cfg, return_fc=self.return_fc)


class RotaryDecoder(base.FwpDecoder):
    layer_class = RotaryDecoderLayer


@register_model("rotary_transformer", dataclass=base.FwpTransformerConfig)
class RotaryTransformer(base.FwpTransformer):
    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):
        return RotaryEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        return RotaryDecoder(cfg, tgt_dict, embed_tokens)


register_model_architecture("rotary_transformer", "rotary_transformer_tiny")(
    ARCH_CONFIG_REGISTRY["fwp_transformer_tiny"]
)
