"""Scores the translations of a training, or reads the score that fairseq-generate printed."""

import re
import sys
from pathlib import Path
from typing import NamedTuple

from .errors import CommandError
from .training_logs import lines_of
from .translations import about_missing, about_other_references, translations

_SOURCE = re.compile(r"S-(\d+)\t(.*)")
_SHARES = 5  # of the sentences, by length
_TRANSLATED = re.compile(r"\| Translated .* \(([\d.]+) sentences/s")
_SCORE = re.compile(r"^Generate \S+ with beam=\d+: (BLEU4?) = ([\d.]+)")
_SCORERS = {"BLEU4": "fairseq-generate's own, of tokens", "BLEU": "sacreBLEU's, by fairseq-generate"}


class TestSet(NamedTuple):
    """The references of a test set, and sacreBLEU's metric for them."""

    references: list[str]
    metric: object


def scored(paths: list[Path], test: TestSet | None) -> dict:
    """Returns score and speed of the newest translations that have a score, or that translate the test set."""
    newest: dict = {}
    for path in sorted(paths, key=lambda path: path.stat().st_mtime):
        speed, numbers = None, set()
        for line in lines_of(path):
            if match := _TRANSLATED.search(line):
                speed = float(match[1])
            elif match := _SOURCE.match(line):
                numbers.add(int(match[1]))
            elif (match := _SCORE.match(line)) and test is None:
                if message := about_missing(numbers, path):
                    print(f"{message}; not scored", file=sys.stderr)
                    continue
                newest = {"bleu": float(match[2]), "scorer": _SCORERS[match[1]], "sentences_per_second": speed}
        if test is not None and (score := _score(path, test)):
            newest = score | {"sentences_per_second": speed}
    return newest


def _score(path: Path, test: TestSet) -> dict | None:
    references, metric = test
    try:
        hypotheses = [line.rstrip() for line in translations(str(path))]
        if len(hypotheses) != len(references):
            raise CommandError(
                f"{path}: {len(hypotheses)} translations of {len(references)} references, another test set"
            )
        if other := about_other_references(str(path), references):
            raise CommandError(other)
    except CommandError as error:
        print(f"{error}; not scored", file=sys.stderr)
        return None
    score = metric.corpus_score(hypotheses, [references]).score
    return {
        "bleu": score,
        "scorer": f"sacreBLEU's, `BLEU|{metric.get_signature().format()}`",
        "by_length": _by_length(path, hypotheses, references, metric),
    }


def _by_length(path: Path, hypotheses: list[str], references: list[str], metric) -> list[tuple[int, int, float]]:
    """Scores equal shares of the sentences, each with the fewest and the most tokens of its sources (S- lines)."""
    lengths = {int(match[1]): len(match[2].split()) for line in lines_of(path, "\n") if (match := _SOURCE.match(line))}
    order = sorted(lengths, key=lengths.get)
    if len(order) != len(references):
        return []
    scores = []
    for n in range(_SHARES):
        if share := order[len(order) * n // _SHARES : len(order) * (n + 1) // _SHARES]:
            texts, expected = ([column[number] for number in share] for column in (hypotheses, references))
            scores.append((lengths[share[0]], lengths[share[-1]], metric.corpus_score(texts, [expected]).score))
    return scores
