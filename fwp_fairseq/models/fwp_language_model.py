"""fairseq's Transformer language model with fast weights: a decoder without cross-attention."""

from dataclasses import dataclass
from functools import partial

from fairseq.models import register_model, register_model_architecture
from fairseq.models import transformer_lm as vanilla

from ..config import DecoderOnlyConfig, check_flags
from . import attention_flags
from .architectures import fill_defaults, fill_sites
from .flat_options import nested
from .language_model_decoder import FwpLanguageModelDecoder
from .site_builder import refuse_heads


@dataclass
class FwpLanguageModelConfig(DecoderOnlyConfig, vanilla.TransformerLanguageModelConfig):
    """All options of fairseq's transformer_lm, and the attention flags."""


def build_decoder(decoder: type, args, task) -> FwpLanguageModelDecoder:
    """Builds a decoder with the embeddings that fairseq builds, so that fairseq checks their flags."""
    refuse_heads("decoder", args.decoder_embed_dim, args.decoder_attention_heads)
    theirs = vanilla.TransformerLanguageModel.build_model(args, task).decoder
    return decoder(nested(args), task.target_dictionary, theirs.embed_tokens, no_encoder_attn=True)


@register_model("fwp_lm", dataclass=FwpLanguageModelConfig)
class FwpLanguageModel(vanilla.TransformerLanguageModel):
    """A decoder-only Transformer with fast weights; ``fwp archs fwp_lm`` lists every flag."""

    def __init__(self, decoder):
        super().__init__(decoder)
        attention_flags.remember(self)

    @classmethod
    def build_model(cls, args, task):
        check_flags(args)
        return cls(build_decoder(FwpLanguageModelDecoder, args, task))

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        attention_flags.check(self, state_dict)
        return super().load_state_dict(state_dict, strict, model_cfg, args)


def fill_wikitext103(args, width: int, **more) -> None:
    """Sets the values of the paper's Sec. 6.3: 16 post-norm layers, 8 heads, tied adaptive input and softmax."""
    values = {
        "decoder_layers": 16,
        "decoder_attention_heads": 8,
        "decoder_embed_dim": width,
        "decoder_ffn_embed_dim": 2048,
        "adaptive_input": True,
        "adaptive_input_cutoff": "20000,40000,200000",
        "adaptive_input_factor": 1,
        "adaptive_softmax_cutoff": "20000,40000,200000",
        "adaptive_softmax_factor": 1,
        "tie_adaptive_weights": True,
    }
    fill_defaults(args, **values, **more)
    pre_norm = getattr(args, "decoder_normalize_before", False)
    vanilla.base_lm_architecture(args)  # always sets pre-norm
    args.decoder_normalize_before = pre_norm


def _fill_linear(args, width: int) -> None:
    fill_wikitext103(args, width)
    fill_sites(args, {"decoder": "elu"})


for _size, _width in {"small": 128, "medium": 256}.items():
    register_model_architecture("fwp_lm", f"fwp_lm_wikitext103_{_size}")(partial(_fill_linear, width=_width))
