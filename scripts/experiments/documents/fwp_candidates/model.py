"""The package's Transformer, changed where a candidate says so."""

from dataclasses import dataclass, field

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import ARCH_CONFIG_REGISTRY, register_model, register_model_architecture
from torch import nn

from fwp_fairseq.models.flat_options import FwpTransformerConfig
from fwp_fairseq.models.fwp_transformer import FwpTransformer

from .clock import add_clock
from .gate import add_gate
from .kda import decay_by_channel

# Each candidate with the sites that it changes. The functions raise TypeError for attention that they do not fit.
CANDIDATES = {
    "kda": (decay_by_channel, ("encoder", "decoder")),
    "output-gate": (add_gate, ("encoder", "decoder")),
    "clock": (add_clock, ("cross",)),
}


@dataclass
class CandidateConfig(FwpTransformerConfig):
    candidates: str = field(default="", metadata={"help": f"some of {', '.join(CANDIDATES)}, separated by commas"})


def _attention(model: FwpTransformer, site: str) -> list[nn.Module]:
    layers = (model.encoder if site == "encoder" else model.decoder).layers
    return [layer.encoder_attn if site == "cross" else layer.self_attn for layer in layers]


@register_model("candidate_transformer", dataclass=CandidateConfig)
class CandidateTransformer(FwpTransformer):
    """The package's Transformer with candidates, which are added after all its parameters were drawn."""

    @classmethod
    def add_args(cls, parser):
        gen_parser_from_dataclass(parser, CandidateConfig(), delete_default=True)

    @classmethod
    def build_model(cls, cfg, task):
        model = super().build_model(cfg, task)
        for name in filter(None, cfg.candidates.split(",")):
            if name not in CANDIDATES:
                raise ValueError(f"--candidates {cfg.candidates}: expected some of {', '.join(CANDIDATES)}")
            add, sites = CANDIDATES[name]
            for site in sites:
                for attention in _attention(model, site):
                    add(attention)
        return model


register_model_architecture("candidate_transformer", "candidate_transformer_tiny")(
    ARCH_CONFIG_REGISTRY["fwp_transformer_tiny"]
)
