"""Named architectures. The names are stored in checkpoints: never rename one."""

from fairseq.models import ARCH_CONFIG_REGISTRY, register_model_architecture
from fairseq.models.transformer import transformer_legacy as vanilla

from ..config import absent_sites, attention_of_flags, with_common
from ..kinds import HYBRID, Attention
from ..options import TRANSLATION_SITES
from .fwp_transformer import FwpTransformer  # noqa: F401  (registers the model)


def fill_defaults(args, **values) -> None:
    for name, value in values.items():
        if not hasattr(args, name):
            setattr(args, name, value)


def fill_sites(args, sites: dict[str, str]) -> None:
    """Sets the attention of each site of the model, unless the user chose a map for all sites or a kind for the site.

    Other flags for all sites, and a flag of the site that names no kind (``passes=one``), change single options of this
    attention.
    """
    if hasattr(args, "fwp_feature_map"):
        return
    for site, text in sites.items():
        own = attention_of_flags(args, site)
        if site not in absent_sites(args) and own.kind is None:
            attention = with_common(args, site, Attention.parse(text)).changed(own.changes)
            setattr(args, f"fwp_{site}", str(attention))


def _architecture(preset, sites: dict[str, str] | None = None, **values):
    """Makes an architecture from ``values`` and, for other options, fairseq's ``preset``; user flags override both."""

    def fill_gaps(args):
        fill_defaults(args, **values)
        preset(args)
        fill_sites(args, sites or {})

    return fill_gaps


def _register(name: str, preset, **values) -> None:
    register_model_architecture("fwp_transformer", name)(_architecture(preset, **values))


# fairseq registers an empty architecture under the name of each dataclass model; this puts the base Transformer there.
ARCH_CONFIG_REGISTRY["fwp_transformer"] = _architecture(vanilla.base_architecture)

# Trains in minutes on a CPU: 2+2 layers of width 192, 4 heads of width 48.
_TINY = {
    "encoder_layers": 2,
    "encoder_embed_dim": 192,
    "encoder_ffn_embed_dim": 384,
    "encoder_attention_heads": 4,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "share_all_embeddings": True,
}
for _name, _preset, _values in (
    ("tiny", vanilla.base_architecture, _TINY),
    ("iwslt_de_en", vanilla.transformer_iwslt_de_en, {}),
    ("wmt_en_de", vanilla.transformer_wmt_en_de, {}),
    ("vaswani_wmt_en_de_big", vanilla.transformer_vaswani_wmt_en_de_big, {}),
):
    _register(f"fwp_transformer_{_name}", _preset, **_values)
    _register(f"fwp_transformer_{_name}_hybrid", _preset, sites=HYBRID, **_values)

# The rows of the paper's Table 1, and its delta rule, on the same model. --fwp-d-dot sets another width.
for _name, _attention in {
    "linear": "elu",
    "performer": "favor,d-dot=256",
    "dpfp": "dpfp,d-dot=256",
    "delta": "dpfp,d-dot=256,update-rule=delta",
}.items():
    _sites = dict.fromkeys(TRANSLATION_SITES, _attention)
    _register(f"{_name}_transformer_wmt_en_de_big", vanilla.transformer_vaswani_wmt_en_de_big, sites=_sites)
