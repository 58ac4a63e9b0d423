"""Builds the attention of each site of a Transformer from its flags."""

from fairseq.models.transformer import TransformerConfig
from torch import nn

from ..config import options_of_site
from ..modules import FastWeightSiteAttention, SoftmaxCrossAttention, SoftmaxSelfAttention
from ..option import hyphens, side_of
from ..options import OPTIONS


def refuse_heads(side: str, embed_dim: int, heads: int) -> None:
    """Raises ValueError unless the heads can share the width; ``side`` is the first word of the flag in the message."""
    if heads < 1 or embed_dim % heads:
        raise ValueError(f"--{side}-attention-heads {heads}: expected a divisor of the model's width, {embed_dim}")


def build_attention(
    layer: nn.Module, embed_dim: int, cfg: TransformerConfig, site: str
) -> SoftmaxCrossAttention | SoftmaxSelfAttention | FastWeightSiteAttention | None:
    """Builds the attention of a site.

    Returns None if the flags give the encoder or the decoder exactly fairseq's softmax attention, which the caller then
    builds. The cross site always has one of our modules.

    Args:
        layer: fairseq's layer, from which the settings of quantisation noise are taken.
        embed_dim: width of the layer.
        cfg: the options of the model.
        site: ``encoder``, ``decoder`` or ``cross``.

    Raises:
        ValueError: flags contradict each other or the widths of the model; the message names them.
    """
    side = side_of(site)
    heads = getattr(cfg, side).attention_heads
    refuse_heads(side, embed_dim, heads)
    options = options_of_site(cfg, site, embed_dim // heads)
    source_dim = cfg.encoder.embed_dim if site == "cross" else None
    common = {
        "options": options, "dropout": cfg.attention_dropout, "q_noise": layer.quant_noise,
        "qn_block_size": layer.quant_noise_block_size,
    }  # fmt: skip
    if not options.is_softmax:
        if options.passes == "both-ways" and heads % 2:
            raise ValueError(
                f"--fwp-{site} passes=both-ways contradicts --{site}-attention-heads {heads}: expected an even number "
                f"of heads, or --fwp-{site} passes=one"
            )
        return FastWeightSiteAttention(embed_dim, heads, site=site, source_dim=source_dim, **common)
    chosen = [name for name, option in OPTIONS.items() if getattr(options, name) != option.default]
    own = [name for name in chosen if OPTIONS[name].of_softmax and name != "feature_map"]  # which fairseq's lacks
    xformers = cfg.encoder.xformers_att_config
    if own and xformers is not None:
        flag = f"{hyphens(own[0])} of the {site} site"
        raise ValueError(f"{flag} contradicts --encoder-xformers-att-config: drop one of the two")
    if options.positions == "rotary" and embed_dim // heads % 2:
        raise ValueError(
            f"rotary positions at the {site} site: heads of width {embed_dim // heads}, expected an even width"
        )
    if site == "cross":
        return SoftmaxCrossAttention(
            embed_dim, heads, kdim=source_dim, vdim=source_dim, encoder_decoder_attention=True,
            xformers_att_config=xformers, **common,
        )  # fmt: skip
    return SoftmaxSelfAttention(embed_dim, heads, site=site, **common) if own else None
