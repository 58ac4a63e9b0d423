"""Texts of two languages in a folder, their pieces, and the settings that fit their size."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path

from ..files import write_atomically
from .errors import CommandError, UsageError
from .paragraphs import count_words, filled, joined, lines_of
from .pieces import learn

PARTS = ("train", "valid", "test")
SETTINGS = [
    *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr-scheduler", "inverse_sqrt"),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--clip-norm", "1"),
    *("--patience", "10", "--no-epoch-checkpoints", "--num-workers", "0", "--skip-invalid-size-inputs-valid-test"),
    *("--required-batch-size-multiple", "1"),  # otherwise fairseq leaves a last batch of fewer than 8 out
]
_EPOCHS, _FEWEST_UPDATES, _MOST_UPDATES = 12, 1000, 100_000
_FEW = 100_000  # words, of which a model with the architectures' dropout of 0.1 learns the sentences by heart
_LARGE = 3_000_000  # words, from which on a tiny model is too small
_LONGEST = 2048  # tokens of a line to train on: attention between the languages takes memory of the square of it

Pair = tuple[str, str]


def _windows(pairs: Iterable[Pair], words: int) -> list[Pair]:
    """Joins consecutive pairs, up to an empty one, while the sources have at most so many words together.

    A longer pair stays alone.
    """
    documents = groupby(pairs, lambda pair: any(text.strip() for text in pair))
    return [
        tuple(joined(text.strip() for text in side) for side in zip(*few, strict=True))
        for has_text, document in documents
        if has_text
        for few in filled(document, lambda pair: count_words(pair[0]), words)
    ]


@dataclass(frozen=True)
class Corpus:
    """``train``, ``valid`` and ``test`` in a folder, each with the endings of both languages.

    With ``window``, lines become windows of so many words of the source (:func:`_windows`). Raises CommandError for a
    file that is missing, empty or not UTF-8, and for parts whose sides differ in length.
    """

    folder: Path
    languages: Pair
    window: int | None = None

    def __post_init__(self):
        if self.languages[0] == self.languages[1]:
            raise UsageError(f"--source and --target are both {self.languages[0]}, expected two languages")
        _ = self.pairs  # so that what is wrong with the texts is said before anything is made of them

    def _lines(self, part: str, language: str) -> list[str]:
        path = self.folder / f"{part}.{language}"
        if not path.is_file():
            raise CommandError(f"{path}: no such file")
        return lines_of(path.read_bytes(), path)

    @cached_property
    def pairs(self) -> dict[str, list[Pair]]:
        """The pairs of each part; those to train and to validate on without pairs of which one side is empty."""
        found = {}
        for part in PARTS:
            sides = [self._lines(part, language) for language in self.languages]
            if len(sides[0]) != len(sides[1]) or not sides[0]:
                counts = " and ".join(
                    f"{self.folder / part}.{language} has {len(side)} lines"
                    for language, side in zip(self.languages, sides, strict=True)
                )
                raise CommandError(f"{counts}; expected as many, and at least one")
            pairs = list(zip(*sides, strict=True))
            if self.window is not None:
                pairs = _windows(pairs, self.window)
            full = [pair for pair in pairs if all(text.strip() for text in pair)]
            if not full:
                raise CommandError(f"{self.folder / part}: no line has text in both {' and '.join(self.languages)}")
            found[part] = pairs if part == "test" else full
        return found

    def digest(self) -> str:
        return hashlib.sha256(repr(sorted(self.pairs.items())).encode()).hexdigest()

    @cached_property
    def words(self) -> int:
        """Words of the target language to train on."""
        return sum(count_words(target) for _, target in self.pairs["train"])

    @property
    def vocabulary(self) -> int:
        """The number of pieces to learn. Every character is one, and Chinese and Japanese have thousands."""
        fitting = 4000 if self.words < _LARGE // 4 else 8000 if self.words < _LARGE else 32_000
        characters = set(chain.from_iterable(chain.from_iterable(self.pairs["train"])))
        return max(fitting, len(characters) + 2000)

    def write_test_set(self, out: Path) -> tuple[Path, Path]:
        """The files of ``test``: those of the folder, or its windows, written into ``out``."""
        folder, name = (self.folder, "test") if self.window is None else (out, "test-windows")
        files = tuple(folder / f"{name}.{language}" for language in self.languages)
        if self.window is not None:
            for file, lines in zip(files, zip(*self.pairs["test"], strict=True), strict=True):
                file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return files

    def write_pieces(self, out: Path, vocabulary: int) -> None:
        """Learns one SentencePiece model of both languages, ``out``/spm.model, and writes each part in its pieces."""
        import sentencepiece

        train = [text for pair in self.pairs["train"] for text in pair]
        try:
            model = learn(train, vocabulary, hard_vocab_limit=False, max_sentence_length=1_000_000)
        except RuntimeError as error:
            raise CommandError(f"--vocabulary {vocabulary}: SentencePiece refuses it: {error}") from None
        write_atomically(out / "spm.model", model)
        pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        for part, pairs in self.pairs.items():
            for language, lines in zip(self.languages, zip(*pairs, strict=True), strict=True):
                text = "".join(" ".join(pieces.encode(line, out_type=str)) + "\n" for line in lines)
                (out / f"{part}.pieces.{language}").write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Recipe:
    """The settings of fairseq-train that fit a corpus.

    - words: of its target language, to train on.
    - lengths: of the pairs to train on, in tokens, the longer side of each.
    - tokens: of the target language, to train on.
    """

    words: int
    lengths: list[int]
    tokens: int

    @classmethod
    def of(cls, corpus: Corpus, out: Path) -> "Recipe":
        """Counts the pieces that :meth:`Corpus.write_pieces` wrote, with an end of sentence each."""
        counts = []
        for language in corpus.languages:
            with open(out / f"train.pieces.{language}", encoding="utf-8") as file:
                counts.append([len(line.split(" ")) + 1 for line in file])
        return cls(corpus.words, [max(pair) for pair in zip(*counts, strict=True)], sum(counts[1]))

    @cached_property
    def positions(self) -> int:
        return min(max(1024, max(self.lengths)), _LONGEST)

    def too_long(self, positions: int) -> int:
        """Pairs to train on that are left out by a model with so many positions."""
        return sum(length > positions for length in self.lengths)

    def flags(self, arch: str | None, max_update: int | None) -> dict[str, str]:
        """Small corpora get a tiny model, a high learning rate and more dropout.

        The warm-up is a fifth of the updates that fit the corpus, whatever ``max_update`` is, so that a training can go
        on with a larger one. The training ends earlier if the loss on valid no longer falls (--patience).
        """
        small = self.words < _LARGE
        tokens = 2500 if small else 8000  # of a batch; at least _LONGEST
        updates = min(max(self.tokens * _EPOCHS // tokens, _FEWEST_UPDATES), _MOST_UPDATES)
        return {
            "--arch": arch or f"fwp_transformer_{'tiny' if small else 'iwslt_de_en'}_hybrid",
            "--dropout": "0.3" if self.words < _FEW else "0.1",
            "--lr": "3e-3" if small else "5e-4",
            "--warmup-updates": str(min(updates // 5, 4000)),
            "--max-tokens": str(tokens),
            "--max-source-positions": str(self.positions),
            "--max-target-positions": str(self.positions),
            "--max-update": str(max_update or updates),
        }
