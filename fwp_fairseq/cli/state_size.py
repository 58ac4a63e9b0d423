"""Counts the numbers that a model keeps of a text, as Schlag et al. 2021 do in Appendix F."""

import argparse
from typing import NamedTuple

from .archs import options
from .errors import UsageError
from .plugin import import_plugin


class Part(NamedTuple):
    """Numbers of one kind. The paper leaves the accumulated keys z out of its sum, and so ``counted`` is False."""

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
    from ..feature_maps import width_for
    from ..layers.fast_nets import FAST_NETS
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
        d_value = width // heads
        config = site_config(cfg, site, d_value)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if config.is_softmax:
        if given.tokens_per_sample is None:
            raise UsageError("softmax attention keeps the tokens that it sees: expected --tokens-per-sample N as well")
        return [_softmax(site, layers, width, given.tokens_per_sample, getattr(cfg, "mem_len", 0))]
    d_dot = config.d_dot or width_for(config.feature_map, d_value)
    if config.has_fast_net:
        with torch.device("meta"):
            size = FAST_NETS[config.fast_net](config, width, heads, d_value, d_dot, 1.0).state_size
        net = f"{config.fast_net}, d_dot {d_dot}, d_value {d_value}"
        return [Part(site, f"fast net {net}: {layers} layers x {heads} heads x {size}", layers * heads * size)]
    found = []
    if config.window is not None:
        near = f"window: {layers} layers x {heads} heads x {config.window} positions x 2 x {d_value}"
        found.append(Part(site, near, layers * heads * config.window * 2 * d_value))
    rows = layers * heads * d_dot
    weights = f"fast weights W: {layers} layers x {heads} heads x d_dot {d_dot} x d_value {d_value}"
    found.append(Part(site, weights, rows * d_value))
    if config.normalizes[1]:
        found.append(Part(site, f"accumulated keys z: {layers} layers x {heads} heads x d_dot {d_dot}", rows, False))
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
        note = "" if part["counted"] else " (not counted, as in the paper)"
        lines.append(f"  {part['what']} = {part['numbers']:,}{note}")
    return "\n".join(lines)
