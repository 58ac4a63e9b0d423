"""fairseq's own Transformer in CTranslate2, by CTranslate2's converter: two rows of :mod:`benchmarks.decoding_length`.

CTranslate2 (https://github.com/OpenNMT/CTranslate2) decodes Transformers with softmax attention in C++. Only these rows
need it: ``pip install ctranslate2``.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from . import models
from .gate import Refused
from .model_gate import small_sample
from .models import ModelCase

# The type in which each row computes, and the permitted error of a log probability: the models are untrained, and eight
# bits move the logits of such a model by .5, a wrong weight by several.
TYPES = {"ctranslate2": ("float32", 1e-4), "ctranslate2-int8": ("int8", 1.0)}


def _translator(task, case: ModelCase, row: str, model):
    """Writes the model as fairseq would, and returns CTranslate2's translator of it, which uses one thread."""
    try:
        import ctranslate2
    except ImportError as error:
        raise Refused(f"{row}: needs the package ctranslate2 ({error})") from error
    cfg = models.configuration(case.size, row)
    languages = (cfg.task.source_lang, cfg.task.target_lang)
    with tempfile.TemporaryDirectory() as folder:
        for language in languages:
            task.source_dictionary.save(f"{folder}/dict.{language}.txt")
        torch.save({"args": cfg.model, "model": model.state_dict()}, f"{folder}/model.pt")
        # The checkpoint holds a Namespace, and is our own.
        converter = ctranslate2.converters.FairseqConverter(
            f"{folder}/model.pt", folder, *languages, unsafe_deserialization=True
        )
        converted = converter.convert(str(Path(folder, "converted")))
        return ctranslate2.Translator(converted, compute_type=TYPES[row][0], inter_threads=1, intra_threads=1)


def _symbols(task, tokens: torch.Tensor) -> list[list[str]]:
    """Returns the symbols of each row of a batch, without pads and ends of sentence: CTranslate2 adds these."""
    words = task.source_dictionary
    return [[words[token] for token in row.tolist() if token not in (words.pad(), words.eos())] for row in tokens]


def prepare(task, case: ModelCase, row: str, model, beam: int) -> Callable[[dict, int], int]:
    """Returns ``translate(sample, length)``, which forces ``length`` tokens and counts those of the best hypotheses."""
    translator = _translator(task, case, row, model)

    def translate(sample: dict, length: int) -> int:
        sources = _symbols(task, sample["net_input"]["src_tokens"])
        results = translator.translate_batch(
            sources, beam_size=beam, min_decoding_length=length, max_decoding_length=length, max_input_length=0,
        )  # fmt: skip
        return sum(len(result.hypotheses[0]) for result in results)

    return translate


def check(task, case: ModelCase, row: str) -> None:
    """Raises Refused unless the log probabilities of a small batch are those of fairseq's model in float64."""
    model = models.build_model(task, case.size, row).eval()
    sample = small_sample(task)
    targets = sample["target"]
    with torch.no_grad():
        exact = model.double()
        expected = exact.get_normalized_probs(exact(**sample["net_input"]), log_probs=True)
    expected = expected.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    scored = _translator(task, case, row, model.float()).score_batch(
        _symbols(task, sample["net_input"]["src_tokens"]), _symbols(task, targets)
    )
    for line, score in enumerate(scored):
        log_probs = torch.tensor(score.log_probs).double()  # of the end of sentence, too
        error = (log_probs - expected[line, : len(log_probs)]).abs().max().item()
        if not error <= TYPES[row][1]:
            raise Refused(f"{row}, {case.name}: error of a token's log probability {error:.1e}")
