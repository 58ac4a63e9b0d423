"""Counts the numbers that a model keeps of a text, as Schlag et al. 2021 do in Appendix F."""

import argparse
import math
from typing import NamedTuple

from .archs import options
from .errors import UsageError
from .plugin import import_plugin

# The paper leaves the accumulated keys z out of its sum; which places of a window are taken is no content.
_NOT_COUNTED = ("z", "present")


class Part(NamedTuple):
    """Numbers of one kind, and whether they are counted."""

    site: str
    what: str
    numbers: int
    counted: bool = True


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(message)


def _softmax(site: str, layers: int, width: int, tokens: int, mem_len: int) -> Part:
    what = f"({mem_len} + {tokens}) tokens" if mem_len else f"{tokens} tokens"
    what = f"keys and values: {layers} layers x {what} x 2 x {width}"
    return Part(site, what, layers * (mem_len + tokens) * 2 * width)


def _transformer_xl(words: list[str]) -> list[Part]:
    """Counts keys and values of the tokens that a layer sees: those in its memory, and those of the current segment.

    The paper's text multiplies the two lengths, but the sizes in its Table 4 follow from their sum.
    """
    parser = _Parser(prog="transformer_xl", allow_abbrev=False)
    for name in ("n-layer", "d-model", "mem-len", "tokens-per-sample"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args(words)
    for name, value in vars(given).items():
        if value < 0:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected 0 or more")
    return [_softmax("decoder", given.n_layer, given.d_model, given.tokens_per_sample, given.mem_len)]


def _architecture(arch: str, words: list[str]) -> list[Part]:
    import torch
    from fairseq.models import ARCH_MODEL_REGISTRY

    from ..config import check_flags, site_config, site_maps
    from ..layers import FastWeightAttention
    from ..models.fwp_language_model import FwpLanguageModel
    from ..models.transformer_xl import TransformerXlLanguageModel

    models = (FwpLanguageModel, TransformerXlLanguageModel)
    own = [name for name, cls in ARCH_MODEL_REGISTRY.items() if issubclass(cls, models)]
    if arch not in own:
        raise UsageError(f"architecture {arch!r}: expected one of {', '.join(own)}, transformer_xl")
    length = _Parser(add_help=False, allow_abbrev=False)
    length.add_argument("--tokens-per-sample", type=int)
    given, words = length.parse_known_args(words)
    try:
        cfg = argparse.Namespace(**options(arch, words))
        check_flags(cfg)
        (site,) = site_maps(cfg)
        layers, heads, width = cfg.decoder_layers, cfg.decoder_attention_heads, cfg.decoder_embed_dim
        config = site_config(cfg, site, width // heads)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if config.is_softmax:
        if given.tokens_per_sample is None:
            raise UsageError("softmax attention keeps the tokens that it sees: expected --tokens-per-sample N as well")
        return [_softmax(site, layers, width, given.tokens_per_sample, getattr(cfg, "mem_len", 0))]
    with torch.device("meta"):
        memory = FastWeightAttention(width, heads, **vars(config)).memory
    found = []
    for name, shape in zip(memory.State._fields, memory.state_shapes(), strict=True):
        if shape is not None:
            what = f"{name}: {layers} layers x {' x '.join(map(str, shape))}"
            found.append(Part(site, what, layers * math.prod(shape), name not in _NOT_COUNTED))
    return found


def collect(words: list[str]) -> dict:
    """Returns the answer for ``ARCH [flags]`` in plain JSON types.

    Raises:
        UsageError: the flags describe no model.
    """
    if not words:
        raise UsageError("--state-size: expected ARCH [flags], e.g. fwp_lm_wikitext103_medium --fwp-update-rule delta")
    arch, *flags = words
    import_plugin()
    parts = _transformer_xl(flags) if arch == "transformer_xl" else _architecture(arch, flags)
    return {
        "architecture": arch,
        "numbers": sum(part.numbers for part in parts if part.counted),
        "parts": [part._asdict() for part in parts],
    }


def text(found: dict) -> str:
    lines = [f"{found['architecture']}: {found['numbers']:,} numbers a stream ({found['numbers'] / 1e6:.2f} M)"]
    for part in found["parts"]:
        note = "" if part["counted"] else " (not counted)"
        lines.append(f"  {part['what']} = {part['numbers']:,}{note}")
    return "\n".join(lines)
