"""The options of fairseq's Transformer: flat on the command line and in checkpoints, nested inside the model."""

import argparse
from dataclasses import field, fields, is_dataclass, make_dataclass
from typing import Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from omegaconf import II, DictConfig, OmegaConf

from ..config import FastWeightConfig

_SAME_AS_EMBEDDING = -1
# Flat options whose type or default differs from that of the nested ones: lists that build_model splits itself,
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
        # fairseq makes a flag from every option with a help text. A flag for a length would hide the task's own flag,
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
    """Converts a flat DictConfig, dataclass or Namespace to fairseq's nested options; other options stay flat."""
    if isinstance(cfg, TransformerConfig):
        return cfg
    if isinstance(cfg, DictConfig):
        cfg = argparse.Namespace(**OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))
    config = TransformerConfig.from_namespace(cfg)
    for width in ("input_dim", "output_dim"):
        if getattr(config.decoder, width) in (None, _SAME_AS_EMBEDDING):
            setattr(config.decoder, width, config.decoder.embed_dim)
    return config
