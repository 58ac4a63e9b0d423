"""fairseq's Transformer with fast-weight attention at any of its three sites.

Besides fairseq's ``build_*`` hooks, it overrides what decoding needs: which rows read which source, the reordering of
hypotheses, and the states of layers.
"""

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed import fsdp_wrap
from fairseq.models import register_model
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase, TransformerModelBase
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn

from ..config import check_flags
from ..kinds import Attention
from ..modules import FastWeightSiteAttention
from ..modules import incremental_state as states
from ..modules.cudnn_attention import without_cudnn_attention
from ..pads import may_be_read
from . import attention_flags
from .flat_options import FwpTransformerConfig, nested
from .lengths import measure_lengths_before_training
from .site_builder import build_attention

# The prefix of a layer's arguments that are tensors of a state.
_STATE = "state_"


def named_state(state: tuple) -> dict[str, Tensor | None]:
    """Returns the tensors of a state as named arguments of a layer."""
    return {f"{_STATE}{name}": x for name, x in zip(state._fields, state, strict=True)}


class FwpEncoderLayer(TransformerEncoderLayerBase):
    """fairseq's encoder layer without the fused path in PyPI's fairseq 0.12.2, which would bypass our attention."""

    def __init__(self, cfg, return_fc: bool = False):
        super().__init__(cfg, return_fc)
        if hasattr(self, "can_use_fastpath"):
            self.can_use_fastpath = False
            for name in self._fused_names():
                self._parameters.pop(name, None)

    def forward(self, *args, **kwargs):
        with without_cudnn_attention(self.training):
            return super().forward(*args, **kwargs)

    @staticmethod
    def _fused_names() -> list[str]:
        return [f"{layer}_{kind}" for layer in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")]

    def _load_from_state_dict(self, state_dict, prefix, *args):
        for name in self._fused_names():
            state_dict.pop(prefix + name, None)
        nn.Module._load_from_state_dict(self, state_dict, prefix, *args)

    def build_self_attention(self, embed_dim, cfg):
        return build_attention(self, embed_dim, cfg, "encoder") or super().build_self_attention(embed_dim, cfg)


class FwpDecoderLayer(TransformerDecoderLayerBase):
    """fairseq's decoder layer with our attention at both sites, which can start from a given state.

    The tensors of the state are separate arguments and results, so that activation checkpointing, which calls the layer
    twice, passes them on.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.need_attn = False  # fairseq's layers compute weights unasked, and its decoder reads those of one layer

    def make_generation_fast_(self, need_attn: bool = False, **kwargs) -> None:
        """Does nothing: even with --print-alignment, weights are computed only on request."""

    def forward(self, x, *args, **kwargs):
        """Runs the layer, starting from the tensors of the memory's state (:func:`named_state`) if they are given.

        Returns:
            ``(x, attention, *state)`` with the tensors of the state after the last position if a state was given, else
            fairseq's result.
        """
        names = [name for name in kwargs if name.startswith(_STATE)]
        if getattr(self.encoder_attn, "positions", None) is not None:
            self.encoder_attn.target_pads = kwargs.get("self_attn_padding_mask")
        if not names:
            with without_cudnn_attention(self.training):
                return super().forward(x, *args, **kwargs)
        before, state = self.self_attn.State(*(kwargs.pop(name) for name in names)), {}
        self.self_attn.store_state(state, before)
        x, attention, _ = super().forward(x, *args, incremental_state=state, **kwargs)
        return x, attention, *self.self_attn.load_state(state)

    def build_self_attention(self, embed_dim, cfg, add_bias_kv=False, add_zero_attn=False):
        attention = build_attention(self, embed_dim, cfg, "decoder")
        if attention is None:
            return super().build_self_attention(embed_dim, cfg, add_bias_kv, add_zero_attn)
        if cfg.cross_self_attention:
            raise ValueError(
                f"--cross-self-attention contradicts the decoder's attention, {Attention.of(attention.options)}: "
                "expected --fwp-decoder softmax, or drop it"
            )
        return attention

    def build_encoder_attention(self, embed_dim, cfg):
        return build_attention(self, embed_dim, cfg, "cross")


def _wrap(layer: nn.Module, cfg) -> nn.Module:
    """Adds gradient checkpointing and sharding, as fairseq does for its own layers."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


class FwpEncoder(TransformerEncoderBase):
    """fairseq's encoder, whose output contains each source once for all hypotheses.

    Attributes:
        beam: the number of adjacent hypotheses per sentence in a search.
    """

    beam = 1

    def set_num_updates(self, num_updates: int) -> None:
        """Does nothing: fairseq calls every module's method by itself.

        The inherited method would call those of all layers once more, and random directions would be drawn twice.
        """

    def build_encoder_layer(self, cfg):
        return _wrap(FwpEncoderLayer(cfg, return_fc=self.return_fc), cfg)

    def reorder_encoder_out(self, encoder_out: dict[str, list[Tensor]], new_order: Tensor) -> dict[str, list[Tensor]]:
        """Reorders rows without copying: each source is still stored once, and row i reads that of row new_order[i].

        Returns:
            ``encoder_out`` with ``rows``, (R / beam, beam): row i * beam + j reads source ``rows[i, j]``. With a beam
            above 1, all entries of ``rows[i]`` are equal.

        Raises:
            RuntimeError: hypotheses of a beam read different sources, or sentences change places. A GPU reports this
                later, as a failed assertion.
        """
        (before,) = encoder_out.get("rows") or [None]
        if before is None:
            sources = encoder_out["encoder_out"][0].shape[1]
            rows, beam = new_order, self.beam if len(new_order) == sources * self.beam else 1
        else:
            rows, beam = before.flatten().index_select(0, new_order), before.shape[1]
            beam = 1 if len(rows) % beam else beam
        rows = rows.view(-1, beam)
        if beam > 1:  # checked without waiting for the device
            expected = before if before is not None and before.shape == rows.shape else rows[:, :1]
            torch._assert_async(
                (rows == expected).all(),
                f"reorder_encoder_out: expected the {beam} hypotheses of each sentence next to each other, and the "
                "sentences in their order, as set_beam_size promised",
            )
        return encoder_out | {"rows": [rows]}


def _of_each_row(encoder_out: dict[str, list[Tensor]], rows: Tensor) -> dict[str, list[Tensor]]:
    """Returns the encoder's output with a separate copy of the source for each row."""
    return encoder_out | {
        "encoder_out": [x.index_select(1, rows) for x in encoder_out["encoder_out"]],
        "encoder_padding_mask": [x.index_select(0, rows) for x in encoder_out["encoder_padding_mask"]],
        "rows": [],
    }


class FwpDecoder(TransformerDecoderBase):
    """fairseq's decoder with our layers, which in decoding reads each source from a single copy."""

    layer_class = FwpDecoderLayer

    def __init__(self, cfg, *args, **kwargs):
        super().__init__(cfg, *args, **kwargs)
        self._self_attends_to_source = self.cross_self_attention

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        return _wrap(self.layer_class(cfg, no_encoder_attn), cfg)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict | None,
        incremental_state: dict | None = None,
        *args,
        **kwargs,
    ):
        """Decodes from an encoder's output that contains each source once, without waiting for the device."""
        if encoder_out is not None and (rows := encoder_out.get("rows")):
            if incremental_state is None or self._self_attends_to_source:
                encoder_out = _of_each_row(encoder_out, rows[0].flatten())
            else:
                states.set_source_rows(incremental_state, rows[0])
        # fairseq's method reads this attribute for one thing more: if it is true, padding is masked in any case, and
        # otherwise only after asking the device whether there is any. In a step, it is set for this alone.
        in_step = incremental_state is not None
        self.cross_self_attention = self._self_attends_to_source or (in_step and not may_be_read(prev_output_tokens))
        return super().extract_features(prev_output_tokens, encoder_out, incremental_state, *args, **kwargs)

    def buffered_future_mask(self, tensor: Tensor) -> Tensor | None:
        """Returns the T x T mask of later positions, or None if no layer reads it."""
        if any(
            not isinstance(getattr(layer, "self_attn", None), FastWeightSiteAttention)
            for layer in self.layers.children()
        ):
            return super().buffered_future_mask(tensor)
        return None

    def reorder_incremental_state_scripting(self, incremental_state: dict, new_order: Tensor) -> None:
        """Reorders the attention of each layer, instead of searching all modules in every step like fairseq."""
        for layer in self.layers.children():
            for name in ("self_attn", "encoder_attn"):
                if (attention := getattr(layer, name, None)) is not None:
                    attention.reorder_incremental_state(incremental_state, new_order)


@register_model("fwp_transformer", dataclass=FwpTransformerConfig)
class FwpTransformer(TransformerModelBase):
    """An encoder-decoder Transformer with fast weights; ``fwp archs fwp_transformer`` lists every flag."""

    def __init__(self, cfg, encoder, decoder):
        super().__init__(cfg, encoder, decoder)
        attention_flags.remember(self)

    @classmethod
    def add_args(cls, parser):
        # The parser must not set defaults: the chosen --arch fills in the options that were not given.
        gen_parser_from_dataclass(parser, FwpTransformerConfig(), delete_default=True)

    @classmethod
    def build_model(cls, cfg, task):
        cfg = nested(cfg)
        check_flags(cfg)
        model = super().build_model(cfg, task)
        measure_lengths_before_training(model, task)
        if getattr(getattr(task, "cfg", None), "load_alignments", False):  # guided alignment learns from the weights
            for layer in model.decoder.layers.children():
                if isinstance(layer.encoder_attn, FastWeightSiteAttention):
                    layer.encoder_attn.shows_weights_in_training = True
        return model

    def set_beam_size(self, beam_size: int) -> None:
        """Sets the number of adjacent hypotheses per sentence in a search."""
        self.encoder.beam = beam_size

    @property
    def full_context_alignment(self) -> bool:
        """Returns True if alignments need another pass over the translation, because steps return no weights."""
        attentions = [getattr(layer, "encoder_attn", None) for layer in self.decoder.layers.children()]
        return not all(attention is None or attention.shows_weights_in_steps for attention in attentions)

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):
        return FwpEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        return FwpDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        attention_flags.check(self, state_dict)
        return super().load_state_dict(state_dict, strict, model_cfg, args)
