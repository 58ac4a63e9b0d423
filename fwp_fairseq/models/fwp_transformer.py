"""fairseq's Transformer with fast-weight attention at any of its three sites.

Only fairseq's ``build_*`` hooks are overridden. Options are flat on the command line and in checkpoints, and fairseq's
nested ones inside the model.
"""

import argparse
from dataclasses import field, fields, is_dataclass, make_dataclass
from typing import Optional

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed import fsdp_wrap
from fairseq.models import register_model
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from omegaconf import II, DictConfig, OmegaConf
from torch import Tensor, nn

from ..config import FastWeightConfig, check_flags, site_config
from ..kinds import hyphens
from ..memories.window import Window
from ..modules import CrossAttention, SelfAttention, SiteAttention
from ..modules import incremental_state as states
from ..modules.attention_plans import without_plans
from ..options import OPTIONS, SiteOptions
from . import attention_flags
from .lengths import measure_lengths_before_training

_SAME_AS_EMBEDDING = -1
# The names of the arguments of a layer that are tensors of a state begin in this way.
_STATE = "state_"


def named_state(state: tuple) -> dict[str, Tensor | None]:
    """The arguments of a layer that are the tensors of a state."""
    return {f"{_STATE}{name}": x for name, x in zip(state._fields, state, strict=True)}


# Flat options whose type or default differs from that of the nested ones: lists that build_model splits by itself,
# widths that follow another flag, and lengths, which are options of the task.
_FLAT_OVERRIDES = {
    "encoder_layers_to_keep": (Optional[str], None),
    "decoder_layers_to_keep": (Optional[str], None),
    "decoder_input_dim": (int, _SAME_AS_EMBEDDING),
    "decoder_output_dim": (int, _SAME_AS_EMBEDDING),
    "max_source_positions": (int, II("task.max_source_positions")),
    "max_target_positions": (int, II("task.max_target_positions")),
}


def _flat_fields(config: type, prefix: str = ""):
    """Yields fairseq's nested transformer options under their flat command-line names."""
    for option in fields(config):
        name = prefix + option.name
        if option.name.startswith("_"):
            continue
        if isinstance(option.type, type) and is_dataclass(option.type):
            yield from _flat_fields(option.type, f"{name}_")
            continue
        kind, default = _FLAT_OVERRIDES.get(name, (option.type, option.default))
        # fairseq makes a flag of every option that has a help text. A flag for a length would hide the task's own flag,
        # and with it the default of a task without a dataclass.
        tasks_own = isinstance(default, str) and default.startswith("${task.")
        yield name, kind, field(default=default, metadata={} if tasks_own else dict(option.metadata))


FwpTransformerConfig = make_dataclass(
    "FwpTransformerConfig",
    list(_flat_fields(TransformerConfig)),
    bases=(FastWeightConfig, FairseqDataclass),
    namespace={"__module__": __name__, "__doc__": "Every option of fairseq's Transformer, flat, and our flags."},
)


def nested(cfg) -> TransformerConfig:
    """fairseq's nested options, and all others beside them, of a flat DictConfig, dataclass or Namespace."""
    if isinstance(cfg, TransformerConfig):
        return cfg
    if isinstance(cfg, DictConfig):
        cfg = argparse.Namespace(**OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))
    found = TransformerConfig.from_namespace(cfg)
    for width in ("input_dim", "output_dim"):
        if getattr(found.decoder, width) in (None, _SAME_AS_EMBEDDING):
            setattr(found.decoder, width, found.decoder.embed_dim)
    return found


def refuse_heads(side: str, embed_dim: int, heads: int) -> None:
    """Raises ValueError for a number of heads between which the width cannot be divided; ``side`` begins the flag."""
    if heads < 1 or embed_dim % heads:
        raise ValueError(f"--{side}-attention-heads {heads}: expected a divisor of the model's width, {embed_dim}")


def _attention(
    layer: nn.Module, embed_dim: int, heads: int, cfg: TransformerConfig, site: str, source_dim: int | None = None
):
    """Builds the attention of a site; None if its flags choose fairseq's own, or softmax cross-attention."""
    side = "encoder" if site == "encoder" else "decoder"
    refuse_heads(side, embed_dim, heads)
    options = site_config(cfg, site, embed_dim // heads)
    if options.is_softmax and site == "cross":
        return None
    noise = {"q_noise": layer.quant_noise, "qn_block_size": layer.quant_noise_block_size}
    if options.is_softmax:
        own = [name for name in ("positions", "conv_size") if _is_chosen(options, name)]
        if not own:
            return None
        refuse_xformers(cfg, f"{hyphens(own[0])} of the {site} site")
        refuse_odd_width(options, site, embed_dim // heads)
        return SelfAttention(embed_dim, heads, site=site, options=options, dropout=cfg.attention_dropout, **noise)
    if options.passes == "both-ways" and heads % 2:
        raise ValueError(
            f"--fwp-{site} passes=both-ways contradicts --{site}-attention-heads {heads}: expected an even number of "
            f"heads, or --fwp-{site} passes=one"
        )
    return SiteAttention(
        embed_dim,
        heads,
        site=site,
        options=options,
        source_dim=source_dim,
        dropout=cfg.attention_dropout,
        **noise,
    )


def _is_chosen(options: SiteOptions, name: str) -> bool:
    return getattr(options, name) != OPTIONS[name].default


def refuse_xformers(cfg: TransformerConfig, flag: str) -> None:
    """Raises ValueError if xformers are to compute attention that has an option which they do not know."""
    if cfg.encoder.xformers_att_config is not None:
        raise ValueError(f"{flag} contradicts --encoder-xformers-att-config: drop one of the two")


def refuse_odd_width(options: SiteOptions, site: str, d_key: int) -> None:
    """Raises ValueError for heads whose coordinates make no pairs."""
    if options.positions == "rotary" and d_key % 2:
        raise ValueError(f"rotary positions at the {site} site: heads of width {d_key}, expected an even width")


class FwpEncoderLayer(TransformerEncoderLayerBase):
    """fairseq's encoder layer without the fused path of PyPI's fairseq 0.12.2, which would bypass our attention."""

    def __init__(self, cfg, return_fc: bool = False):
        super().__init__(cfg, return_fc)
        if hasattr(self, "can_use_fastpath"):
            self.can_use_fastpath = False
            for name in self._fused_names():
                self._parameters.pop(name, None)

    def forward(self, *args, **kwargs):
        with without_plans(self.training):
            return super().forward(*args, **kwargs)

    @staticmethod
    def _fused_names() -> list[str]:
        return [f"{layer}_{kind}" for layer in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias")]

    def _load_from_state_dict(self, state_dict, prefix, *args):
        for name in self._fused_names():
            state_dict.pop(prefix + name, None)
        nn.Module._load_from_state_dict(self, state_dict, prefix, *args)

    def build_self_attention(self, embed_dim, cfg):
        return _attention(self, embed_dim, cfg.encoder.attention_heads, cfg, "encoder") or super().build_self_attention(
            embed_dim, cfg
        )


class FwpDecoderLayer(TransformerDecoderLayerBase):
    """fairseq's decoder layer with our attention at both of its sites; it can also go on from a given state.

    Its tensors are arguments and results of their own: so they pass through activation checkpointing, which calls the
    layer twice.
    """

    @property
    def need_attn(self) -> bool:
        """Whether to compute attention weights unasked; fairseq's layers do, and its decoder reads those of one."""
        return False

    @need_attn.setter
    def need_attn(self, value: bool) -> None:
        pass

    def forward(self, x, *args, **kwargs):
        """Takes the tensors of the memory's state before the first position, if any, by name (:func:`named_state`).

        Returns:
            ``(x, attention, *state)`` with the tensors of the state after the last position if there was one, else
            fairseq's result.
        """
        names = [name for name in kwargs if name.startswith(_STATE)]
        if getattr(self.encoder_attn, "positions", None) is not None:
            self.encoder_attn.target_pads = kwargs.get("self_attn_padding_mask")
        if not names:
            with without_plans(self.training):
                return super().forward(x, *args, **kwargs)
        before, state = self.self_attn.State(*(kwargs.pop(name) for name in names)), {}
        self.self_attn.store_state(state, before)
        x, attention, _ = super().forward(x, *args, incremental_state=state, **kwargs)
        return x, attention, *self.self_attn.load_state(state)

    def build_self_attention(self, embed_dim, cfg, add_bias_kv=False, add_zero_attn=False):
        attention = _attention(self, embed_dim, cfg.decoder.attention_heads, cfg, "decoder")
        if attention is None:
            return super().build_self_attention(embed_dim, cfg, add_bias_kv, add_zero_attn)
        if cfg.cross_self_attention:
            raise ValueError(
                f"--cross-self-attention contradicts feature map {attention.options.feature_map} at the decoder site: "
                "add --fwp-decoder softmax or drop it"
                if isinstance(attention, SiteAttention)
                else "--cross-self-attention contradicts positions and convolutions of the decoder's self-attention: "
                "drop the options positions and conv-size of --fwp-decoder, or drop it"
            )
        return attention

    def build_encoder_attention(self, embed_dim, cfg):
        heads, source_dim = cfg.decoder.attention_heads, cfg.encoder.embed_dim
        if (attention := _attention(self, embed_dim, heads, cfg, "cross", source_dim)) is not None:
            return attention
        options = site_config(cfg, "cross", embed_dim // heads)
        if options.positions != "none":
            refuse_xformers(cfg, "positions of the cross site")
            refuse_odd_width(options, "cross", embed_dim // heads)
        return CrossAttention(
            embed_dim,
            heads,
            options=options,
            kdim=source_dim,
            vdim=source_dim,
            dropout=cfg.attention_dropout,
            encoder_decoder_attention=True,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
            xformers_att_config=cfg.encoder.xformers_att_config,
        )


def _wrap(layer: nn.Module, cfg) -> nn.Module:
    """Adds gradient checkpointing and sharding, as fairseq does for its own layers."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


class FwpEncoder(TransformerEncoderBase):
    """fairseq's encoder, whose output keeps each source once for all hypotheses.

    Attributes:
        beam: how many hypotheses of a sentence a search keeps next to each other.
    """

    beam = 1

    def set_num_updates(self, num_updates: int) -> None:
        """Does nothing: the model tells every module too, and directions would be drawn twice."""

    def build_encoder_layer(self, cfg):
        return _wrap(FwpEncoderLayer(cfg, return_fc=self.return_fc), cfg)

    def reorder_encoder_out(self, encoder_out: dict[str, list[Tensor]], new_order: Tensor) -> dict[str, list[Tensor]]:
        """Makes row i the old row new_order[i] without a copy: the sources stay as they are, each once.

        Returns:
            ``encoder_out`` with ``rows``, (R / beam, beam): row i * beam + j reads source ``rows[i, j]``. With a beam
            above 1 each of its lines holds a single number.

        Raises:
            RuntimeError: hypotheses of a beam read different sources, or sentences change places. A GPU reports it
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
    """The encoder's output with the source of each row, which may be that of others too."""
    return encoder_out | {
        "encoder_out": [x.index_select(1, rows) for x in encoder_out["encoder_out"]],
        "encoder_padding_mask": [x.index_select(0, rows) for x in encoder_out["encoder_padding_mask"]],
        "rows": [],
    }


class FwpDecoder(TransformerDecoderBase):
    layer_class = FwpDecoderLayer

    def __init__(self, cfg, *args, **kwargs):
        super().__init__(cfg, *args, **kwargs)
        self._writes_source = self.cross_self_attention  # its self-attention reads the source too, beside the target
        self._has_window = any(isinstance(module, Window) for module in self.modules())

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
        """As fairseq's, with an encoder's output that keeps each source once, and without waiting for the device."""
        if encoder_out is not None and (rows := encoder_out.get("rows")):
            if incremental_state is None or self._writes_source:
                encoder_out = _of_each_row(encoder_out, rows[0].flatten())
            else:
                states.hand_rows(incremental_state, rows[0])
        # fairseq asks the device whether there are pads, unless this is set: then they are masked unasked.
        self.cross_self_attention = self._writes_source or (incremental_state is not None and not self._has_window)
        return super().extract_features(prev_output_tokens, encoder_out, incremental_state, *args, **kwargs)

    def buffered_future_mask(self, tensor: Tensor) -> Tensor | None:
        """The mask of the future, or None if no layer reads it: its T x T numbers make memory quadratic in T."""
        if any(not isinstance(getattr(layer, "self_attn", None), SiteAttention) for layer in self.layers.children()):
            return super().buffered_future_mask(tensor)
        return None

    def reorder_incremental_state_scripting(self, incremental_state: dict, new_order: Tensor) -> None:
        """As fairseq's, which in every step looks for attention among all modules."""
        for layer in self.layers.children():
            for name in ("self_attn", "encoder_attn"):
                if (attention := getattr(layer, name, None)) is not None:
                    attention.reorder_incremental_state(incremental_state, new_order)


@register_model("fwp_transformer", dataclass=FwpTransformerConfig)
class FwpTransformer(TransformerModelBase):
    """Encoder-decoder Transformer with fast weights; see ``fwp archs fwp_transformer`` for every flag."""

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
                if isinstance(layer.encoder_attn, SiteAttention):
                    layer.encoder_attn.shows_weights_in_training = True
        return model

    def set_beam_size(self, beam_size: int) -> None:
        """Takes a search's promise to keep so many hypotheses of each sentence next to each other."""
        self.encoder.beam = beam_size

    @property
    def full_context_alignment(self) -> bool:
        """Whether fairseq computes alignments that are asked for in one more pass, because steps give no weights."""
        attention = [getattr(layer, "encoder_attn", None) for layer in self.decoder.layers.children()]
        return not all(of is None or of.shows_weights_in_steps for of in attention)

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):
        return FwpEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        return FwpDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        attention_flags.check(self, state_dict)
        return super().load_state_dict(state_dict, strict, model_cfg, args)
