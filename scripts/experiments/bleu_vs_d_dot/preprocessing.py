"""Turns raw text into pieces for fairseq-preprocess: Moses's normalisation and tokens, joint BPE, cleaning."""

from __future__ import annotations

import multiprocessing
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from fwp_fairseq.files import replaced, write_atomically
from scripts.data import pieces

MAX_RATIO = 1.5
_CHUNK, _BLOCK = 500, 100_000
_worker: dict = {}


@dataclass(frozen=True)
class Style:
    """How a text becomes tokens.

    - `normalise`: Moses's normalize-punctuation.perl and remove-non-printing-char.perl.
    - `plain_apostrophes`: ’ becomes ', as fairseq does with test sets.
    - `split_hyphens`: Moses's tokenizer.perl -a.
    - `lower`: Moses's lowercase.perl.
    """

    normalise: bool = False
    plain_apostrophes: bool = False
    split_hyphens: bool = False
    lower: bool = False


def lines(path: Path) -> Iterator[str]:
    # Only \n ends a sentence, because lines of Common Crawl contain other separators.
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.removesuffix("\n")


def printable(line: str) -> str:
    """Replaces control, format and unassigned characters by spaces, as Moses's remove-non-printing-char.perl does."""
    if line.isprintable():
        return line
    return "".join(" " if unicodedata.category(c)[0] == "C" else c for c in line)


def _start(language: str, style: Style) -> None:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    _worker["style"] = style
    _worker["tokenizer"] = MosesTokenizer(language)
    _worker["normalizer"] = MosesPunctNormalizer(language) if style.normalise else None


def _tokens(line: str) -> str:
    style = _worker["style"]
    if style.normalise:
        line = printable(_worker["normalizer"].normalize(line))
    if style.plain_apostrophes:
        line = line.replace("’", "'")
    tokens = _worker["tokenizer"].tokenize(line, aggressive_dash_splits=style.split_hyphens, return_str=True)
    return tokens.lower() if style.lower else tokens


@contextmanager
def _tokeniser(workers: int, language: str, style: Style) -> Iterator[Callable[[list[str]], Iterable[str]]]:
    """Yields a function that returns the tokens of each line, in order; several workers are processes of their own."""
    if workers == 1:
        _start(language, style)
        yield partial(map, _tokens)
        return
    # spawn rather than fork, because the caller may have threads.
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, initializer=_start, initargs=(language, style)) as pool:
        yield partial(pool.imap, _tokens, chunksize=_CHUNK)


def tokenise(sources: list[Path], target: Path, language: str, workers: int, style: Style, tick=None) -> int:
    """Writes the tokens of all sources into `target`, one source after another; returns the number of lines."""
    count = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    texts = (line for source in sources for line in lines(source))
    with _tokeniser(workers, language, style) as tokens_of, replaced(target) as out:
        # Processes would read all of the text ahead, so they are given one block at a time.
        while block := list(islice(texts, _BLOCK)):
            for text in tokens_of(block):
                out.write(f"{text}\n".encode())
                count += 1
                if tick:
                    tick()
    return count


def split(source: dict[str, Path], train: dict[str, Path], valid: dict[str, Path], longest: int, every: int) -> dict:
    """Cleans a parallel text of tokens; each `every`-th pair that is left goes to `valid`, the others to `train`.

    Returns the numbers of pairs that were read, and are now in train and valid.
    """
    read = 0
    counts = {"train": 0, "valid": 0}
    with ExitStack() as stack:
        files = {
            name: [stack.enter_context(replaced(path)) for path in paths.values()]
            for name, paths in (("train", train), ("valid", valid))
        }
        for pair in zip(*(lines(path) for path in source.values()), strict=True):
            read += 1
            if _is_clean(*(len(side.split()) for side in pair), longest):
                name = "valid" if (sum(counts.values()) + 1) % every == 0 else "train"
                for file, side in zip(files[name], pair, strict=True):
                    file.write(f"{side}\n".encode())
                counts[name] += 1
    return {"read": read, **counts}


def learn(sources: Iterable[Path], model: Path, vocabulary: int, every: int, coverage: float) -> None:
    """Learns a joint SentencePiece BPE model on one of `every` lines of tokens, which it does not normalise.

    ``coverage`` is the share of the text's characters that pieces cover. Rarer characters become <unk>.
    """
    sentences = (line for path in sources for n, line in enumerate(lines(path)) if n % every == 0)
    found = pieces.learn(sentences, vocabulary, coverage, os.cpu_count(), normalization_rule_name="identity")
    write_atomically(model, found)


def encode(
    model: Path, sources: dict[str, Path], targets: dict[str, Path], longest: int | None, tick=None
) -> tuple[int, int]:
    """Writes the pieces of a parallel text; returns the numbers of pairs that were read and kept.

    With `longest`, the pairs are cleaned: see `_is_clean`.
    """
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for path in targets.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    read = kept = 0
    with ExitStack() as stack:
        files = [stack.enter_context(replaced(path)) for path in targets.values()]
        for pair in zip(*(lines(path) for path in sources.values()), strict=True):
            read += 1
            sides = [processor.encode(side, out_type=str) for side in pair]
            if longest is None or _is_clean(*map(len, sides), longest):
                for file, side in zip(files, sides, strict=True):
                    file.write(f"{' '.join(side)}\n".encode())
                kept += 1
            if tick:
                tick()
    return read, kept


def _is_clean(first: int, second: int, longest: int) -> bool:
    """Says whether Moses's clean-corpus-n.perl keeps a pair of sides of these lengths, with fairseq's ratio.

    It drops pairs with an empty side, a side of more than `longest`, or a side of more than MAX_RATIO times the other.
    """
    shorter, longer = sorted((first, second))
    return shorter >= 1 and longer <= longest and longer <= MAX_RATIO * shorter
