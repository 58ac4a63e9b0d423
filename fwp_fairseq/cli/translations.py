"""Reads translations from plain text or from the output of fairseq-generate."""

import re
from pathlib import Path
from unicodedata import is_normalized, normalize

from .errors import CommandError
from .paragraphs import read_lines
from .training_logs import lines_of

_GENERATED = re.compile(r"([HD])-(\d+)\t([^\t]*)\t(.*)", re.DOTALL)
_SUBWORD_NMT = re.compile(r"@@( |$)")
_TARGET = re.compile(r"T-(\d+)\t(.*)")
_COMPARED = 200  # lines
_ALIKE = 50  # chrF, at least, of a text and its tokens; of different texts it is below 30


def _join_sentencepiece(texts: list[str]) -> list[str]:
    if not any("▁" in text for text in texts):
        return texts
    return [text.replace(" ", "").replace("▁", " ").strip() for text in texts]


def generated(found_lines: list[str], path: str, kind: str | None) -> list[str]:
    """Returns the lines of a kind, D or H, in the order of their ids; without a kind the D- or else the H- lines.

    Empty for any other text. Raises CommandError if lines of this kind are missing.
    """
    kinds: dict[str, dict[int, str]] = {"D": {}, "H": {}}
    for line in found_lines:
        if match := _GENERATED.fullmatch(line):
            number, text = int(match[2]), match[4]
            if number in kinds[match[1]]:
                raise CommandError(
                    f"{path}: {match[1]}-{number} occurs twice; decode with --nbest 1 into an empty file"
                )
            kinds[match[1]][number] = text
    texts = kinds[kind] if kind else kinds["D"] or kinds["H"]
    if kind and not texts:
        raise CommandError(f"--lines {kind}: {path} has no {kind}- lines of fairseq-generate")
    if message := about_missing(set(texts), path):
        raise CommandError(message)
    return [texts[number] for number in range(len(texts))]


def about_missing(numbers: set[int], path: object) -> str:
    """Returns a message if numbers of sentences are left out below the largest one, else an empty one."""
    missing = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
    if not missing:  # fairseq leaves out a last batch that does not fill its default multiple of 8
        return ""
    return (
        f"{path}: {len(missing)} of {max(numbers) + 1} translations are missing, the first is {missing[0]}; decode "
        "with --required-batch-size-multiple 1, and join the outputs of a test set that was decoded in parts"
    )


def translations(path: str, remove_bpe: bool = False, kind: str | None = None) -> list[str]:
    """Returns the translation of each sentence, in the order of the test set.

    In the output of fairseq-generate, SentencePiece's pieces are joined; plain text is taken as it is. ``kind`` says
    which lines of that output to take: D, H, or None for the D- lines, or the H- lines if there are none.
    ``remove_bpe`` joins pieces of subword-nmt and of SentencePiece in both. Raises CommandError when ids are missing or
    occur twice, when lines of this kind are missing, or when the output of fairseq-generate holds subword-nmt's pieces
    and ``remove_bpe`` is False.
    """
    plain = read_lines(path)
    texts = generated(plain, path, kind)
    if not texts:
        texts = plain
        if not remove_bpe:
            return texts
    if remove_bpe:
        texts = [_SUBWORD_NMT.sub("", text) for text in texts]
    elif any(_SUBWORD_NMT.search(text) for text in texts):
        raise CommandError(f"{path} holds subword-nmt pieces (word@@ ): add --remove-bpe, here or while decoding")
    return _join_sentencepiece(texts)


def about_form(path: object, references: list[str]) -> str:
    """Returns a message if references are not in Unicode's NFC, else an empty one."""
    others = sum(not is_normalized("NFC", line) for line in references)
    if not others:
        return ""
    return (
        f"{path}: {others:,} of {len(references):,} lines are not in Unicode's NFC, in which the models of fwp train "
        "write; letters that look alike may count as different (references.LANGUAGE in --out is in NFC)"
    )


def about_other_references(path: str, references: list[str]) -> str:
    """Returns a message if a file translates another test set than that of the references, else an empty one.

    The output of fairseq-generate has T- lines; ``fwp train`` leaves ``references.LANGUAGE`` beside its translations.
    """
    from sacrebleu.metrics import CHRF

    own = {int(match[1]): match[2] for line in lines_of(Path(path), "\n") if (match := _TARGET.match(line))}
    if not own and Path(path).stem == "translations":
        own = dict(enumerate(lines_of(Path(path).with_name(f"references{Path(path).suffix}"), "\n")))
    numbers = sorted(number for number in own if number < len(references))[:_COMPARED]
    theirs = [_SUBWORD_NMT.sub("", own[number]).replace("▁", "") for number in numbers]
    ours = [references[number] for number in numbers]
    theirs, ours = ([normalize("NFC", text) for text in texts] for texts in (theirs, ours))
    alike = CHRF().corpus_score(theirs, [ours]).score if numbers else 100
    return "" if alike >= _ALIKE else f"{path} translates another test set: its own references are not these"
