"""For fairseq's --user-dir: T-Fixup (Huang et al. 2020), softmax attention's initialisation without layer norm.

The architecture `t_fixup_transformer_tiny` is `fwp_transformer_tiny` without layer norms. Its embeddings, and the
weights of values, outputs and feed-forward layers, begin so much smaller that an update changes the model as much as
it does with layer norm (section 3.2 there, and `fixup_initialization` of github.com/layer6ai-labs/T-Fixup).
"""

import argparse
from pathlib import Path

import torch
from fairseq import utils
from fairseq.models import ARCH_CONFIG_REGISTRY, register_model, register_model_architecture
from torch import nn

utils.import_user_module(argparse.Namespace(user_dir=str(Path(__file__).resolve().parents[3] / "fwp_fairseq")))

from fwp_fairseq.models import fwp_transformer as base  # noqa: E402


def without_norms(module: nn.Module) -> None:
    """Replaces all layer norms in the module by the identity."""
    for name, child in module.named_children():
        if isinstance(child, nn.LayerNorm):
            setattr(module, name, nn.Identity())
        else:
            without_norms(child)


@torch.no_grad()
def scale(layers: nn.ModuleList, factor: float) -> None:
    """Multiplies what a new layer of fairseq's adds to its input by the factor."""
    for layer in layers:
        for name, parameter in layer.named_parameters():
            if name.endswith("v_proj.weight"):
                parameter.mul_(2**0.5 * factor)  # which fairseq draws smaller than Xavier's
            elif name.endswith(("out_proj.weight", "fc1.weight", "fc2.weight")):
                parameter.mul_(factor)


@register_model("t_fixup_transformer", dataclass=base.FwpTransformerConfig)
class TFixupTransformer(base.FwpTransformer):
    @classmethod
    def build_model(cls, cfg, task):
        model = super().build_model(cfg, task)
        without_norms(model)
        encoder, decoder = model.encoder.layers, model.decoder.layers
        scale(encoder, 0.67 * len(encoder) ** -0.25)
        scale(decoder, (9 * len(decoder)) ** -0.25)
        embeddings = {part.embed_tokens.weight: len(part.layers) for part in (model.encoder, model.decoder)}
        with torch.no_grad():
            for weight, layers in embeddings.items():
                weight.mul_((9 * layers) ** -0.25)
        return model


register_model_architecture("t_fixup_transformer", "t_fixup_transformer_tiny")(
    ARCH_CONFIG_REGISTRY["fwp_transformer_tiny"]
)
