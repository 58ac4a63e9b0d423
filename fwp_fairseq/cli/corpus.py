"""Texts of two languages in a folder, their pieces, and the settings that fit their size."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .errors import CommandError, UsageError

PARTS = ("train", "valid", "test")
SETTINGS = [
    *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr-scheduler", "inverse_sqrt"),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--clip-norm", "1"),
    *("--patience", "10", "--no-epoch-checkpoints", "--num-workers", "0"),
]
_EPOCHS, _FEWEST_UPDATES, _MOST_UPDATES = 12, 1000, 100_000
_LARGE = 200_000  # lines, from which on a tiny model is too small


@dataclass(frozen=True)
class Corpus:
    """``train``, ``valid`` and ``test`` in a folder, each with the endings of both languages.

    Raises CommandError for a file that is missing, empty or not UTF-8, and for parts whose sides differ in length.
    """

    folder: Path
    languages: tuple[str, str]

    def __post_init__(self):
        if self.languages[0] == self.languages[1]:
            raise UsageError(f"--source and --target are both {self.languages[0]}, expected two languages")
        for part in PARTS:
            counts = [len(self.lines[part, language]) for language in self.languages]
            if counts[0] != counts[1] or not counts[0]:
                found = " and ".join(
                    f"{self.folder / part}.{language} has {count} lines"
                    for language, count in zip(self.languages, counts, strict=True)
                )
                raise CommandError(f"{found}; expected as many, and at least one")

    @cached_property
    def lines(self) -> dict[tuple[str, str], list[str]]:
        found = {}
        for part in PARTS:
            for language in self.languages:
                path = self.folder / f"{part}.{language}"
                try:
                    text = path.read_bytes().decode("utf-8-sig")  # fairseq would take a byte order mark for a word
                except FileNotFoundError:
                    raise CommandError(f"{path}: no such file") from None
                except UnicodeDecodeError as error:
                    raise CommandError(f"{path} is not UTF-8: {error}") from None
                found[part, language] = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n") if text]
        return found

    def digest(self) -> str:
        return hashlib.sha256(repr(sorted(self.lines.items())).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Lines to train on."""
        return len(self.lines["train", self.languages[0]])

    @property
    def words(self) -> int:
        return sum(len(line.split()) for line in self.lines["train", self.languages[1]])

    @property
    def longest(self) -> int:
        """Words of the longest line of any part."""
        return max(len(line.split()) for lines in self.lines.values() for line in lines)

    @property
    def vocabulary(self) -> int:
        return 4000 if self.size < _LARGE // 4 else 8000 if self.size < _LARGE else 32_000

    def write_pieces(self, out: Path, vocabulary: int) -> None:
        """Learns one SentencePiece model of both languages, ``out``/spm.model, and writes each part in its pieces."""
        import sentencepiece

        train = [line for language in self.languages for line in self.lines["train", language]]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(train), model_prefix=str(out / "spm"), model_type="bpe", vocab_size=vocabulary,
            hard_vocab_limit=False, character_coverage=1.0, max_sentence_length=1_000_000, minloglevel=2,
        )  # fmt: skip
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(out / "spm.model"))
        for (part, language), lines in self.lines.items():
            text = "".join(" ".join(pieces.encode(line, out_type=str)) + "\n" for line in lines)
            (out / f"{part}.pieces.{language}").write_text(text, encoding="utf-8")


def recipe(corpus: Corpus, arch: str | None, max_update: int | None) -> dict[str, str]:
    """The flags of fairseq-train that depend on the size of the corpus.

    A word is taken for one and a half pieces. Small corpora get a tiny model, a high learning rate and a warm-up of a
    fifth of all updates; training ends earlier if the loss on valid no longer falls (--patience).
    """
    small = corpus.size < _LARGE
    longest = 64 + 4 * corpus.longest  # pieces; names and numbers fall into many
    tokens = max(2500 if small else 8000, longest)
    updates = int(1.5 * corpus.words * _EPOCHS / tokens)
    updates = max_update or min(max(updates, _FEWEST_UPDATES), _MOST_UPDATES)
    return {
        "--arch": arch or f"fwp_transformer_{'tiny' if small else 'iwslt_de_en'}_hybrid",
        "--lr": "3e-3" if small else "5e-4",
        "--warmup-updates": str(min(max(updates // 5, 1), 4000)),
        "--max-tokens": str(tokens),
        "--max-source-positions": str(max(longest, 1024)),
        "--max-target-positions": str(max(longest, 1024)),
        "--max-update": str(updates),
    }
