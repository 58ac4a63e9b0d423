"""Texts of two languages in a folder, and their pieces."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from unicodedata import normalize

from ..files import write_atomically
from .errors import CommandError, UsageError
from .paragraphs import count_words, filled, joined, read_lines
from .pieces import encoded, learn_exact

PARTS = ("train", "valid", "test")
_NAMES = 12  # how many names of files an error lists at most
LARGE = 3_000_000  # words; for so many or more, a tiny model is too small

Pair = tuple[str, str]


def _passages(pairs: Iterable[Pair], words: int) -> list[Pair]:
    """Joins consecutive pairs into passages whose sources have at most ``words`` words.

    An empty pair ends a passage. A longer pair stays alone.
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

    Each file may be compressed, with .gz at the end of its name. With ``passage``, lines become passages of at most so
    many words of the source (:func:`_passages`). Raises CommandError for files that are missing, empty or not UTF-8,
    and for parts whose sides differ in length.
    """

    folder: Path
    languages: Pair
    passage: int | None = None
    without_text: dict[str, int] = field(default_factory=dict)  # pairs of each part of which one side is empty

    def __post_init__(self):
        for flag, language in zip(("--source", "--target"), self.languages, strict=True):
            if not language or language.startswith("-") or "/" in language:
                raise UsageError(f"{flag} {language!r}: expected the suffix of a file, such as en")
        if self.languages[0] == self.languages[1]:
            raise UsageError(f"--source and --target are both {self.languages[0]}, expected two languages")
        _ = self.pairs  # so that what is wrong with the texts is said before anything is made of them

    def _path(self, part: str, language: str) -> Path:
        plain = self.folder / f"{part}.{language}"
        packed = plain.with_name(f"{plain.name}.gz")
        return packed if packed.is_file() and not plain.is_file() else plain

    def _refuse_missing(self) -> None:
        paths = [self._path(part, language) for part in PARTS for language in self.languages]
        if missing := [path.name for path in paths if not path.is_file()]:
            what = f"--texts {self.folder}: expected a folder with {', '.join(missing)}, plain or with .gz"
            if not self.folder.is_dir():
                raise UsageError(f"{what}; this is {'a file' if self.folder.exists() else 'no folder'}")
            names = sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("."))
            there = f"{', '.join(names[:_NAMES])}{', ...' if len(names) > _NAMES else ''}" if names else "nothing"
            raise CommandError(f"{what}; it has {there}")

    @cached_property
    def pairs(self) -> dict[str, list[Pair]]:
        """The pairs of each part; train and valid without the pairs that have an empty side."""
        self._refuse_missing()
        parts = {}
        for part in PARTS:
            sides = [read_lines(self._path(part, language)) for language in self.languages]
            if len(sides[0]) != len(sides[1]) or not sides[0]:
                counts = " and ".join(
                    f"{self._path(part, language)} ({len(side):,})"
                    for language, side in zip(self.languages, sides, strict=True)
                )
                raise CommandError(f"lines of {counts}: expected equal numbers of lines, at least one")
            pairs = list(zip(*sides, strict=True))
            if self.passage is not None:
                pairs = _passages(pairs, self.passage)
            full = [pair for pair in pairs if all(text.strip() for text in pair)]
            if not full:
                raise CommandError(f"{self.folder / part}: no line has text in both {' and '.join(self.languages)}")
            self.without_text[part] = len(pairs) - len(full)
            parts[part] = pairs if part == "test" else full
        return parts

    def digest(self) -> str:
        return hashlib.sha256(repr(sorted(self.pairs.items())).encode()).hexdigest()

    @cached_property
    def words(self) -> int:
        """The number of words of the target language to train on."""
        return sum(count_words(target) for _, target in self.pairs["train"])

    @property
    def vocabulary(self) -> int:
        """The number of pieces to learn. Every character is one, and Chinese and Japanese have thousands."""
        fitting = 4000 if self.words < LARGE // 4 else 8000 if self.words < LARGE else 32_000
        characters = set(chain.from_iterable(chain.from_iterable(self.pairs["train"])))
        return max(fitting, len(characters) + 2000)

    def write_test_set(self, out: Path, form: str | None = None) -> tuple[Path, Path]:
        """Writes the two sides of ``test``, with lines joined into passages if requested, and returns the files.

        ``form`` is the Unicode form of the references: NFC if the model's pieces were learned here, since these write
        NFC.
        """
        names = zip(("sources", "references"), self.languages, strict=True)
        files = tuple(out / f"{name}.{language}" for name, language in names)
        sources, references = zip(*self.pairs["test"], strict=True)
        if form is not None:
            references = [normalize(form, line) for line in references]
        for file, lines in zip(files, (sources, references), strict=True):
            write_atomically(file, "".join(f"{line}\n" for line in lines))
        return files

    def learn_pieces(self, vocabulary: int) -> bytes:
        """Learns one SentencePiece model of both languages."""
        train = [text for pair in self.pairs["train"] for text in pair]
        try:
            return learn_exact(train, vocabulary, hard_vocab_limit=False, max_sentence_length=1_000_000)
        except RuntimeError as error:
            raise CommandError(f"--vocabulary {vocabulary}: SentencePiece refuses it: {error}") from None

    def write_pieces(self, out: Path, model: bytes) -> int:
        """Writes the SentencePiece model, ``out``/spm.model, and each part in its pieces; returns their number."""
        import sentencepiece

        write_atomically(out / "spm.model", model)
        pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        for part, pairs in self.pairs.items():
            for language, lines in zip(self.languages, zip(*pairs, strict=True), strict=True):
                text = "".join(f"{encoded(pieces, line)}\n" for line in lines)
                write_atomically(out / f"{part}.pieces.{language}", text)
        return pieces.get_piece_size()
