"""Builds small models in this process, without a task, files or a command line."""

import argparse
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY

import fwp_fairseq.models.architectures  # noqa: F401  (registers the names)
from fwp_fairseq.config import FastWeightConfig
from fwp_fairseq.models.fwp_transformer import FwpTransformer

SIZES = dict(
    encoder_embed_dim=12,
    encoder_ffn_embed_dim=16,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_layers=2,
    decoder_layers=2,
)


def dictionary(words: int = 30) -> Dictionary:
    found = Dictionary()
    for number in range(words):
        found.add_symbol(f"w{number}")
    return found


WORDS = dictionary()
PAD = WORDS.pad()


def arguments(arch: str, **flags) -> argparse.Namespace:
    """Returns the options as from the command line: flags, then the architecture's values, then fairseq's defaults."""
    args = argparse.Namespace(max_source_positions=1024, max_target_positions=1024, **flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def build_raw(arch: str = "fwp_transformer", words: Dictionary = WORDS, cls=FwpTransformer, **flags):
    """Builds a model of the architecture's own size."""
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words)
    defaults = vars(FastWeightConfig()) if cls is FwpTransformer else {}
    return cls.build_model(argparse.Namespace(**defaults | vars(arguments(arch, **flags))), task)


def build(seed: int = 0, **flags):
    """Builds a tiny model in float64 and evaluation mode."""
    torch.manual_seed(seed)
    return build_raw(**(SIZES | {"share_all_embeddings": True, "dropout": 0.1} | flags)).double().eval()


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(WORDS.nspecial, len(WORDS), (rows, length), generator=generator)


def sources(lengths, width: int | None = None, left: bool = False, seed: int = 0):
    """Returns (src_tokens, src_lengths) with rows of the given lengths, padded on one side."""
    width = max(lengths) if width is None else width
    found = torch.full((len(lengths), width), PAD)
    for row, length in enumerate(lengths):
        start = width - length if left else 0
        found[row, start : start + length] = tokens(1, length, seed + row)[0]
        found[row, start + length - 1] = WORDS.eos()
    return found, torch.tensor(lengths)


def prefixes(rows: int, length: int, seed: int = 50) -> torch.Tensor:
    found = tokens(rows, length, seed)
    found[:, 0] = WORDS.eos()
    return found


def loss(model, seed: int = 0) -> torch.Tensor:
    """Returns the loss of a fixed batch of sentences of different lengths."""
    src, lengths = sources([7, 5, 3], seed=seed)
    out, _ = model(src, lengths, prefixes(3, 6, seed))
    return torch.nn.functional.cross_entropy(out.flatten(0, 1), tokens(3, 6, seed + 9).flatten())
