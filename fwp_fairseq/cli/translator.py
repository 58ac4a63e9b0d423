"""A trained translation model with its dictionaries and pieces, found from its checkpoint."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..text import printable
from .checkpoint import load_model
from .errors import CommandError, UsageError
from .pieces import encoded

_CHECKPOINTS = ("checkpoint_best.pt", "checkpoint_last.pt", "average.pt")


@dataclass(frozen=True)
class Translation:
    """One hypothesis: its score, text and alignment, as fairseq prints them."""

    score: float
    text: str
    alignment: str


def checkpoint_in(path: Path) -> Path:
    """Returns the checkpoint that a path names: itself, or the best or last one in it or in its `checkpoints`."""
    whole = path.absolute()  # whose parents exist, unlike those of a name alone
    if whole.is_file():
        return whole
    folders = (whole, whole / "checkpoints")  # the latter is that of `fwp train --out`
    checkpoints = [file for folder in folders for name in _CHECKPOINTS if (file := folder / name).is_file()]
    if not checkpoints:
        raise CommandError(f"{path}: expected a checkpoint, or a folder with one of {', '.join(_CHECKPOINTS)}")
    return checkpoints[0]


def data_of(checkpoint: Path, task: dict, flag: Path | None) -> Path:
    """Returns the folder of the dictionaries: the flag's, the checkpoint's own, or that of the training.

    A training without --source-lang and --target-lang does not save its languages, which fairseq then reads from the
    names of binarised files; only a folder with such files will do.
    """
    sides = [task.get(side) for side in ("source_lang", "target_lang")]
    if "source_lang" not in task or task.get("lang_pairs") or task.get("langs"):
        name = printable(task.get("_name") or task.get("task"))
        raise CommandError(f"{checkpoint}: expected a model that translates one language, actual one of task {name}")
    trained = str(task.get("data") or "").split(":")[0]
    tried = [flag] if flag else [checkpoint.parent, checkpoint.parent.parent, *([Path(trained)] if trained else [])]
    for folder in tried:
        languages = sides if all(sides) else _languages_of_files(folder)
        if languages and all((folder / f"dict.{language}.txt").is_file() for language in languages):
            return folder
    wanted = "binarised files, whose names tell the languages of this model,"
    if all(sides):
        wanted = " and ".join(dict.fromkeys(f"dict.{language}.txt" for language in sides))
    raise CommandError(f"{wanted} are not in {', '.join(map(str, tried))}; --data names their folder")


def _languages_of_files(folder: Path) -> list[str] | None:
    from fairseq.data.data_utils import infer_language_pair

    languages = infer_language_pair(str(folder)) if folder.is_dir() else [None]
    return languages if all(languages) else None


def pieces_of(checkpoint: Path, data: Path, flag: str | None):
    """Loads the SentencePiece model of the flag, or the only one beside dictionaries or checkpoint; None for ``none``.

    Raises CommandError if there is none, since a model reads what its pieces were in training, and if there are more.
    """
    if flag == "none":
        return None
    folders = dict.fromkeys([data, data.parent, checkpoint.parent, checkpoint.parent.parent])
    models = (
        [Path(flag)] if flag else next((paths for folder in folders if (paths := sorted(folder.glob("*.model")))), [])
    )
    if len(models) > 1:
        raise CommandError(f"{', '.join(map(str, models))}: --spm names the one of the source language")
    if not models or not models[0].is_file():
        raise CommandError(
            f"{flag or 'a SentencePiece model'} was not found; --spm names the file, or is none for lines of pieces"
        )
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_file=str(models[0]))
    except (OSError, RuntimeError) as error:
        raise CommandError(f"{models[0]}: {error}") from None


def joined(pieces: list[str], model) -> str:
    """Joins pieces to a text; the model of the source language leaves those that it does not know as they are."""
    return model.decode(pieces).replace("▁", " ").strip()


class Translator:
    """Translates lines with fairseq's generator.

    Args:
        checkpoint: the file.
        data: folder of the dictionaries; None to look for them.
        spm: the SentencePiece model; None to look for it, ``none`` for lines of pieces.
        options: of fairseq's generation by their names, e.g. beam=4.
        max_tokens: of a batch, pads included.
        int8: whether large linear layers compute in eight bits, on a CPU.
        source_window: how many positions of its source softmax cross-attention reads in a step; None for all.
        device: cpu or cuda.
    """

    def __init__(
        self, checkpoint: Path, data: Path | None, spm: str | None, options: dict[str, Any], max_tokens: int,
        int8: bool, source_window: int | None, device: str,
    ):  # fmt: skip
        from fairseq.dataclass.configs import FairseqConfig

        from ..modules.packed import pack_

        self.checkpoint = checkpoint
        self.model, self.task, data = load_model(checkpoint, lambda task: data_of(checkpoint, task, data))
        self.pieces = pieces_of(checkpoint, data, spm)
        self._take_any_length()
        cfg = FairseqConfig()
        for name, value in options.items():
            setattr(cfg.generation, name, value)
        self.model.eval()
        if source_window is not None:
            self._narrow(source_window)
        self.model.prepare_for_inference_(cfg)
        if int8:
            self._quantize(device)
        elif device == "cpu":
            pack_(self.model)
        self.model.to(device)
        self.device, self.max_tokens, self.nbest = device, max_tokens, cfg.generation.nbest
        self.generator = self.task.build_generator([self.model], cfg.generation)

    def _take_any_length(self) -> None:
        """Lifts the limits of the training on sides with sinusoidal positions, computed when needed, or with none."""
        from fairseq.modules import SinusoidalPositionalEmbedding

        for side, limit in ((self.model.encoder, "max_source_positions"), (self.model.decoder, "max_target_positions")):
            positions = getattr(side, "embed_positions", None)  # which recurrent models lack
            if positions is None or isinstance(positions, SinusoidalPositionalEmbedding):
                setattr(side, limit, sys.maxsize if positions is None else positions.max_positions)

    def _narrow(self, size: int) -> None:
        from ..modules.softmax_cross_attention import set_source_window_

        try:
            set_source_window_(self.model, size)
        except ValueError as error:
            raise CommandError(f"--source-window {size}: {error}") from None

    def _quantize(self, device: str) -> None:
        from ..modules.int8 import quantize_
        from ..modules.large_linears import SMALLEST

        if device != "cpu":
            raise UsageError(f"--int8 is for CPUs, and the model is on {device}; --cpu takes it there")
        try:
            changed = quantize_(self.model)
        except ValueError as error:
            raise CommandError(f"--int8: {error}") from None
        if not changed:
            print(f"--int8 changes nothing: no linear layer has {SMALLEST:,} weights or more", file=sys.stderr)

    def encode(self, line: str):
        if self.pieces is not None:
            line = encoded(self.pieces, line)
        return self.task.source_dictionary.encode_line(line, add_if_not_exist=False).long()

    @property
    def longest(self) -> int:
        """The number of tokens, with the end of sentence, that a source may have."""
        return self.model.max_positions()[0]

    def translate(self, sources: list, progress: Callable[[int], object]) -> list[list[Translation]]:
        """Translates encoded lines, batches of similar length first; the result has the order of the lines.

        ``progress`` is told how many lines are done with each batch.
        """
        import torch
        from fairseq.utils import move_to_cuda

        lengths = [len(source) for source in sources]
        batches = self.task.get_batch_iterator(
            self.task.build_dataset_for_inference(sources, lengths),
            max_tokens=max([self.max_tokens, *lengths]),
            max_positions=self.model.max_positions(),
            disable_iterator_cache=True,  # the task would keep every block
        ).next_epoch_itr(shuffle=False)
        translations: dict[int, list[Translation]] = {}
        for sample in batches:
            sample = sample if self.device == "cpu" else move_to_cuda(sample)
            try:
                with torch.inference_mode():
                    translated = self.task.inference_step(self.generator, [self.model], sample)
            except AssertionError as error:  # the search has come to its last step without an end of sentence
                raise CommandError(
                    f"{self.checkpoint}: its scores are no numbers, the model diverged ({error})"
                ) from None
            for number, hypotheses in zip(sample["id"].tolist(), translated, strict=True):
                translations[number] = [self._decode(hypothesis) for hypothesis in hypotheses[: self.nbest]]
            progress(len(translated))
        return [translations[number] for number in range(len(sources))]

    def _decode(self, hypothesis: dict) -> Translation:
        from fairseq_cli.generate import get_symbols_to_strip_from_output

        ignored = get_symbols_to_strip_from_output(self.generator)
        text = self.task.target_dictionary.string(
            hypothesis["tokens"].int().cpu(), None, extra_symbols_to_ignore=ignored
        )
        if self.pieces is not None:
            text = joined(text.split(), self.pieces)
        alignment = hypothesis["alignment"]
        pairs = [] if alignment is None else [f"{source}-{target}" for source, target in alignment]
        return Translation(float(hypothesis["score"]) / math.log(2), text, " ".join(pairs))
