"""Builds small language models, vanilla and ours, of equal size, without positions."""

import torch
from fairseq import tasks
from fairseq.tasks.language_modeling import LanguageModelingTask

import fwp_fairseq.models.fwp_language_model  # noqa: F401  (registers fwp_lm)

from .corpus import dictionary
from .models import attention_flags, parsed, possible_d_dot

# layers, width, heads, width of the feed-forward layer
SIZES = {"mini": (1, 32, 2, 64), "small": (4, 128, 8, 2048), "medium": (4, 256, 8, 2048)}


def d_dot(size: str, row: str) -> int | None:
    _, width, heads, _ = SIZES[size]
    return possible_d_dot(row, width // heads)


def configuration(size: str, row: str, *more: object):
    """Makes fairseq's configuration as its command line would."""
    layers, width, heads, inner = SIZES[size]
    attention = attention_flags(row, width // heads, ["decoder"])
    flags: list[object] = [
        *("placeholder", "--task", "language_modeling", "--arch", "fwp_lm" if attention else "transformer_lm"),
        *("--decoder-layers", layers, "--decoder-embed-dim", width, "--decoder-input-dim", width),
        *("--decoder-output-dim", width, "--decoder-ffn-embed-dim", inner, "--decoder-attention-heads", heads),
        *("--share-decoder-input-output-embed", "--no-token-positional-embeddings", "--dropout", 0.1),
        *("--criterion", "cross_entropy", "--optimizer", "adam", "--lr", 1e-4, "--lr-scheduler", "fixed", "--cpu"),
        *("--distributed-world-size", 1, "--num-workers", 0, "--tokens-per-sample", 1_000_000),
    ]
    return parsed("language_modeling", *flags, *attention, *more)


def build(size: str, row: str, *more: object, words: int = 100) -> tuple[LanguageModelingTask, torch.nn.Module]:
    """Returns a model with a vocabulary of ``words``, and its task."""
    cfg = configuration(size, row, *more)
    task = tasks.TASK_REGISTRY["language_modeling"](cfg.task, dictionary(words))
    torch.manual_seed(1)
    return task, task.build_model(cfg.model)
