"""Texts that fwp train has prepared in a folder: pieces, dictionaries and binarised files, which trainings share."""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..files import write_atomically
from .commands import logged, tool
from .corpus import PARTS, Corpus
from .errors import CommandError, UsageError
from .plugin import FOLDER


@dataclass(frozen=True)
class Vocabulary:
    """The pieces and dictionaries that a checkpoint was trained with."""

    pieces: bytes
    dictionaries: tuple[Path, Path]


@dataclass(frozen=True)
class Prepared:
    """The prepared texts of ``corpus`` in ``folder``."""

    corpus: Corpus
    folder: Path

    @property
    def _stamp(self) -> Path:
        return self.folder / "prepared.json"

    @property
    def is_made(self) -> bool:
        return self._stamp.is_file()

    def make(self, vocabulary: int | None, theirs: Vocabulary | None, flag: str, say: Callable[[str], object]) -> None:
        """Learns or takes over the pieces and binarises the texts, unless that is done.

        Raises UsageError, which names the ``flag`` of the folder, if it was made from other texts; CommandError if
        files in it are damaged.
        """
        corpus = self.corpus
        made = {"texts": corpus.digest(), "languages": list(corpus.languages), "passage": corpus.passage}
        if vocabulary is not None:
            made["vocabulary"] = vocabulary
        if self.is_made:
            self._refuse_others(made, flag)
            if theirs is not None:
                self._refuse_dictionaries(theirs, flag)
            return
        wanted = vocabulary or corpus.vocabulary
        pieces = f"learns up to {wanted:,} pieces" if theirs is None else "takes the pieces of --finetune-from"
        say(f"{pieces} and cuts {sum(map(len, corpus.pairs.values())):,} pairs into them")
        count = corpus.write_pieces(self.folder, corpus.learn_pieces(wanted) if theirs is None else theirs.pieces)
        if vocabulary is not None and count < vocabulary:
            say(f"the texts give {count:,} pieces at most, fewer than --vocabulary {vocabulary:,}")
        self._binarise(theirs)
        made["vocabulary"] = count if theirs else wanted
        write_atomically(self._stamp, json.dumps({**made, "files": self._sums()}))

    def _binarise(self, theirs: Vocabulary | None) -> None:
        source, target = self.corpus.languages
        log = self.folder / "preprocess.log"
        if log.exists():  # an earlier call was stopped here, and fairseq does not overwrite its dictionaries
            for language in self.corpus.languages:
                (self.folder / f"dict.{language}.txt").unlink(missing_ok=True)
        dictionaries = ["--joined-dictionary"]
        if theirs is not None:
            dictionaries = ["--srcdict", theirs.dictionaries[0], "--tgtdict", theirs.dictionaries[1]]
        logged(
            log,
            *tool("preprocess", "--user-dir", FOLDER, "--source-lang", source, "--target-lang", target),
            *(*dictionaries, "--destdir", self.folder, "--workers", 1),
            *(word for part in PARTS for word in (f"--{part}pref", self.folder / f"{part}.pieces")),
        )

    def differs_from(self, other: Path) -> bool:
        """Returns True if another folder was prepared from other texts; False if it is not there."""
        stamp = other / self._stamp.name
        return stamp.is_file() and stamp.read_bytes() != self._stamp.read_bytes()

    def _files(self) -> list[Path]:
        source, target = self.corpus.languages
        names = ["spm.model", *(f"dict.{language}.txt" for language in (source, target))]
        for part in PARTS:
            names += [f"{part}.pieces.{language}" for language in (source, target)]
            names += [f"{part}.{source}-{target}.{side}.{kind}" for side in (source, target) for kind in ("bin", "idx")]
        return [self.folder / name for name in names]

    def _sums(self) -> dict[str, int]:
        return {path.name: zlib.crc32(path.read_bytes()) for path in self._files()}

    def _refuse_others(self, made: dict, flag: str) -> None:
        advice = f"delete {self._stamp}, and the same command prepares the texts again"
        try:
            before = json.loads(self._stamp.read_text(encoding="utf-8"))
            sums = dict(before.get("files", {}))
        except (ValueError, TypeError, AttributeError) as error:
            raise CommandError(f"{self._stamp} is damaged ({error}); {advice}") from None
        if other := [name for name in made if made[name] != before.get(name)]:
            was = ", ".join("other texts" if name == "texts" else f"{name} {before.get(name)}" for name in other)
            now = ", ".join(f"{name} {made[name]}" for name in other if name != "texts")
            raise UsageError(
                f"{flag} {self.folder} holds a training with {was}{now and f', not {now}'}; expected the same, or "
                "another folder"
            )
        for path in self._files():
            if not path.is_file() or (path.name in sums and zlib.crc32(path.read_bytes()) != sums[path.name]):
                raise CommandError(f"{path} is {'damaged' if path.exists() else 'missing'}; {advice}")

    def _refuse_dictionaries(self, vocabulary: Vocabulary, flag: str) -> None:
        for language, theirs in zip(self.corpus.languages, vocabulary.dictionaries, strict=True):
            if (self.folder / f"dict.{language}.txt").read_bytes() != theirs.read_bytes():
                raise UsageError(
                    f"{flag} {self.folder} has another dict.{language}.txt than the checkpoint of --finetune-from "
                    f"({theirs}); expected the folder of its training, or a new one"
                )

    @property
    def pieces(self) -> int:
        """The number of entries in the dictionary of the target language."""
        return len((self.folder / f"dict.{self.corpus.languages[1]}.txt").read_text(encoding="utf-8").splitlines())

    def sides(self, part: str) -> list[list[int]]:
        """Returns the lengths of the lines of a part in each language, in tokens: pieces and the end of sentence."""
        counts = []
        for language in self.corpus.languages:
            with open(self.folder / f"{part}.pieces.{language}", encoding="utf-8") as file:
                counts.append([len(line.split(" ")) + 1 for line in file])
        return counts

    def lengths(self, part: str) -> list[int]:
        """Returns the tokens of the longer side of each pair."""
        return [max(pair) for pair in zip(*self.sides(part), strict=True)]


def vocabulary_of(checkpoint: Path, task: dict, languages: tuple[str, str]) -> Vocabulary:
    """Finds the pieces and dictionaries of a checkpoint, which has to translate between the languages."""
    from .translator import data_of, pieces_of

    theirs = task.get("source_lang"), task.get("target_lang")
    if all(theirs) and theirs != languages:
        raise UsageError(
            f"--finetune-from {checkpoint} translates {' into '.join(theirs)}, expected {' into '.join(languages)}"
        )
    data = data_of(checkpoint, task, None)
    pieces = pieces_of(checkpoint, data, None).serialized_model_proto()
    return Vocabulary(pieces, tuple(data / f"dict.{language}.txt" for language in languages))
