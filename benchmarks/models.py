"""Builds fairseq models, vanilla and ours, of equal size, with fairseq's own task and data."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask
from fairseq.utils import move_to_cuda

import fwp_fairseq.models.architectures  # noqa: F401  (registers the names)
from fwp_fairseq.cli.recipe import NO_SINUSOIDS
from fwp_fairseq.kinds import HYBRID, PASSAGES, Attention
from fwp_fairseq.options import TRANSLATION_SITES, SiteOptions

from . import corpus


def _model(layers: int, width: int, inner: int, heads: int) -> list[object]:
    return [
        *("--encoder-layers", layers, "--encoder-embed-dim", width, "--encoder-ffn-embed-dim", inner),
        *("--encoder-attention-heads", heads, "--decoder-layers", layers, "--decoder-attention-heads", heads),
    ]


# Each size: the architecture without its prefix, flags, width of a head, smallest vocabulary.
SIZES = {
    "mini": ("transformer", _model(1, 32, 32, 2), 16, None),
    "small": ("transformer", _model(2, 128, 256, 2), 64, None),  # of the tables of BLEU by site
    "tiny": ("transformer", _model(2, 192, 384, 4), 48, None),
    "base": ("transformer", [], 64, None),
    "big": ("transformer_vaswani_wmt_en_de_big", [], 64, 32768),
}
# The rows of a table: a kind of attention at all sites, and after a space the backend of the operators; softmax is
# fairseq's own transformer. When the time is up, the last rows are left out.
ATTENTION = (
    "softmax",
    "dpfp,d-dot=256",
    "dpfp,d-dot=512",
    "dpfp,d-dot=256 chunked",
    "dpfp,d-dot=256,update-rule=delta",
    "elu",
    "favor,d-dot=256",
    "dpfp,d-dot=384",
    "hedgehog,d-dot=128",
    "t2r,d-dot=128",
    "hybrid",
)
# Rows with another kind of attention at each site, and rows whose name is one of these followed by -WORD.
_MIXED = {"hybrid": HYBRID, "passages": PASSAGES}
# Rows that only decode: fairseq's transformer in another engine (benchmarks/ctranslate2_engine.py); the hybrid with the
# weights of its large linear layers laid out once, or in eight bits, with and without a window of the source; and the
# model that `fwp train --passage` makes.
_ENGINES = {"ctranslate2": "ctranslate2 float32", "ctranslate2-int8": "ctranslate2 int8"}
DECODERS = (
    *("hybrid-packed", "hybrid-int8", "hybrid-window", "hybrid-int8-window"),
    *("passages", "passages-packed", "passages-window"),
    *_ENGINES,
)
_COMMON = [
    *("placeholder", "--task", "translation", "--source-lang", "en", "--target-lang", "de", "--share-all-embeddings"),
    *("--max-source-positions", 2048, "--max-target-positions", 2048, "--distributed-world-size", 1),
    *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", 1e-4, "--lr-scheduler", "fixed", "--dropout", 0.1),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1, "--num-workers", 0, "--seed", 1),
    *("--required-batch-size-multiple", 1),
]


@dataclass(frozen=True)
class ModelCase:
    """One size of model on one kind of data.

    Attributes:
        sentences: how many make a batch, where cases of several such numbers need names of their own.
    """

    size: str
    data: str
    max_tokens: int
    batches: int
    rounds: int
    rows: tuple[str, ...] = ATTENTION
    sentences: int | None = None

    @property
    def name(self) -> str:
        return f"{self.size}-{self.data}" + ("" if self.sentences is None else f"-{self.sentences}")


def _kinds(row: str) -> dict[str, str]:
    """Returns the kind of each site."""
    if mixed := _MIXED.get(row.partition("-")[0]):
        return mixed
    return dict.fromkeys(TRANSLATION_SITES, "softmax" if row in _ENGINES else row.partition(" ")[0])


def _options(row: str) -> SiteOptions:
    """Returns the options of decoders' self-attention."""
    return Attention.parse(_kinds(row)["decoder"]).options()


def possible_d_dot(row: str, d_key: int) -> int | None:
    """Returns the row's d_dot, or the next larger one if it is impossible with heads of this width."""
    options = _options(row)
    step = 2 * d_key if options.feature_map == "dpfp" else 1
    return None if options.d_dot is None else -(-options.d_dot // step) * step


def attention_flags(row: str, d_key: int, sites: Iterable[str] = TRANSLATION_SITES) -> list[object]:
    """fairseq-train's flags for the row's attention with heads of this width; none for fairseq's own."""
    if _options(row).is_softmax:
        return []
    width = possible_d_dot(row, d_key)
    changes = {} if width is None else {"d_dot": width}
    kinds = {site: Attention.parse(kind).changed(changes) for site, kind in _kinds(row).items() if site in sites}
    flags = [word for site, kind in kinds.items() for word in (f"--fwp-{site}", kind)]
    return [*flags, "--fwp-backend", row.partition(" ")[2] or "auto"]


def attention_fields(row: str) -> dict:
    """Returns the fields of a record that describe the attention of a row."""
    options = _options(row)
    backend = _ENGINES.get(row) if options.is_softmax else row.partition(" ")[2] or "auto"
    rule = None if options.is_softmax else options.update_rule
    return {"feature_map": options.feature_map, "update_rule": rule, "backend": backend}


def d_dot(size: str, row: str) -> int | None:
    return possible_d_dot(row, SIZES[size][2])


@cache
def _parsed(task: str, *words: str):
    arguments = options.parse_args_and_arch(options.get_training_parser(task), list(words))
    arguments.tpu = False  # what fairseq takes --bf16 for
    return convert_namespace_to_omegaconf(arguments)


def parsed(task: str, *words: object):
    """fairseq's configuration for the words of a command line."""
    return deepcopy(_parsed(task, *map(str, words)))


def configuration(size: str, row: str, *more: object):
    """Makes fairseq's configuration as its command line would."""
    architecture, flags, d_key, _ = SIZES[size]
    attention = attention_flags(row, d_key)
    arch = f"fwp_{architecture}" if attention else architecture
    positions = [NO_SINUSOIDS] if _kinds(row) == PASSAGES else []
    return parsed("translation", *_COMMON, *flags, "--arch", arch, *attention, *positions, *more)


def build_task(case: ModelCase) -> TranslationTask:
    cfg = configuration(case.size, "softmax")
    words, dataset = corpus.load(case.data, SIZES[case.size][3])
    task = tasks.TASK_REGISTRY["translation"](cfg.task, words, words)
    task.datasets["train"] = dataset
    return task


def batches(task: TranslationTask, case: ModelCase, device: str) -> list[dict]:
    """Returns the first batches of a shuffled epoch, made by fairseq."""
    epoch = task.get_batch_iterator(
        task.dataset("train"), max_tokens=case.max_tokens, max_positions=(2048, 2048), seed=1, num_workers=0,
        required_batch_size_multiple=1,
    ).next_epoch_itr(shuffle=True)  # fmt: skip
    samples = list(islice(epoch, case.batches))
    return [move_to_cuda(sample) for sample in samples] if device == "cuda" else samples


def build_model(task: TranslationTask, size: str, row: str, *more: object, seed: int = 1):
    torch.manual_seed(seed)
    return task.build_model(configuration(size, row, *more).model)


def fields(case: ModelCase, row: str) -> dict:
    """Returns the fields of a record that describe the row of a case."""
    return {
        "size": case.size, "data": case.data, "max_tokens": case.max_tokens, "batches": case.batches,
        "attention": row, **attention_fields(row), "d_dot": d_dot(case.size, row),
    }  # fmt: skip
