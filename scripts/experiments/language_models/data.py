"""Prepares the text of a preset: cuts it into three parts, turns them into tokens and binarises these."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fwp_fairseq.files import replaced, write_atomically
from scripts.common import process
from scripts.common.commands import words_of
from scripts.common.folder import Folder, RecipeError
from scripts.data import texts

SPLITS = ("train", "valid", "test")
STEPS = ("text", "tokens", "preprocess")
# As in fwp ppl, this stands for a space.
SPACE = "\u2581"
SMOKE_CHARACTERS = 6000


@dataclass(frozen=True)
class Corpus:
    """A text and its tokens.

    Args:
        sources: the files to fetch.
        split: writes raw/SPLIT.txt from the fetched files.
        tokenise: writes tokens/SPLIT from raw/SPLIT.txt; None if the raw text consists of tokens already.
        what: describes the text and its parts to the user.
    """

    sources: tuple[texts.Source, ...]
    split: Callable[[Path, Path], None]
    tokenise: Callable[[Path], None] | None
    what: str


def _write(raw: Path, parts: dict[str, str]) -> None:
    raw.mkdir(parents=True, exist_ok=True)
    for split, text in parts.items():
        write_atomically(raw / f"{split}.txt", text)


def _lines_up_to(text: str, characters: int) -> int:
    """Returns the end of the line that holds this character."""
    return text.index("\n", characters) + 1


def _cut_shakespeare(fetched: Path, raw: Path, limit: int | None = None) -> None:
    text = (fetched / texts.TINY_SHAKESPEARE.name).read_text(encoding="utf-8")
    if limit:
        text = text[: _lines_up_to(text, limit)]
    first, second = (_lines_up_to(text, len(text) * part // 20) for part in (18, 19))
    _write(raw, {"train": text[:first], "valid": text[first:second], "test": text[second:]})


def _unpack_wikitext103(fetched: Path, raw: Path) -> None:
    raw.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(fetched / texts.WIKITEXT103.name) as archive:
        for split in SPLITS:
            with archive.open(f"wikitext-103/wiki.{split}.tokens") as packed, replaced(raw / f"{split}.txt") as file:
                shutil.copyfileobj(packed, file)


def _tokenise(data: Path, tokens: Callable[[list[str]], Iterable[Iterable[str]]]) -> None:
    """Writes tokens/SPLIT; ``tokens`` returns those of each line."""
    (data / "tokens").mkdir(exist_ok=True)
    for split in SPLITS:
        lines = (data / f"raw/{split}.txt").read_text(encoding="utf-8").split("\n")[:-1]
        write_atomically(data / f"tokens/{split}", "".join(f"{' '.join(line)}\n" for line in tokens(lines)))


def _characters(data: Path) -> None:
    _tokenise(data, lambda lines: (line.replace(" ", SPACE) for line in lines))


_SHAKESPEARE = "the first 90 %, next 5 % and last 5 % of Tiny Shakespeare, in characters"
CORPORA = {
    "wikitext103": Corpus((texts.WIKITEXT103,), _unpack_wikitext103, None, "WikiText-103 in words"),
    "tinyshakespeare": Corpus((texts.TINY_SHAKESPEARE,), _cut_shakespeare, _characters, _SHAKESPEARE),
    "smoke": Corpus(
        (texts.TINY_SHAKESPEARE,),
        lambda fetched, raw: _cut_shakespeare(fetched, raw, SMOKE_CHARACTERS),
        _characters,
        f"the first {SMOKE_CHARACTERS:,} characters of Tiny Shakespeare",
    ),
}


def preprocess(name: str, data: Path) -> list[str]:
    corpus = CORPORA[name]
    folder = "raw/{}.txt" if corpus.tokenise is None else "tokens/{}"
    flags = {f"--{split}pref": data / folder.format(split) for split in SPLITS}
    flags |= {"--destdir": f"{data}/bin", "--workers": process.cores() if corpus.tokenise is None else 1}
    return ["fairseq-preprocess", "--only-source", *words_of(flags)]


def prepare(name: str, data: Path) -> None:
    """Fills the folder `data`, except for steps that are finished. Waits if another process is filling it.

    Raises RecipeError if a file cannot be fetched, is damaged, or the folder holds another text.
    """
    corpus, raw = CORPORA[name], data / "raw"
    folder = Folder(data, tuple(step for step in STEPS if step != "tokens" or corpus.tokenise is not None))
    with folder.locked(wait=True):
        folder.claim({"corpus": name, "what": corpus.what} | {source.name: source.sha256 for source in corpus.sources})

        def fetch() -> None:
            for source in corpus.sources:
                texts.provide(source, data / "fetched" / source.name, lambda text: folder.say(f"  {text}"))
            try:
                corpus.split(data / "fetched", raw)
            except (zipfile.BadZipFile, KeyError) as error:
                raise RecipeError(f"{data}/fetched: {error}") from None

        folder.run("text", f"text: {corpus.what}", {}, [raw / f"{split}.txt" for split in SPLITS], fetch)
        if corpus.tokenise is not None:
            outputs = [data / "tokens" / split for split in SPLITS]
            folder.run("tokens", "tokens", {}, outputs, lambda: corpus.tokenise(data))
        command = preprocess(name, data)
        # The number of workers is left out. It changes nothing, and the folder may be used on another machine.
        folder.binarise(command, command[:-1], "dict.txt")
