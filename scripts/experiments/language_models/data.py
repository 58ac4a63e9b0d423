"""Prepares the text of a preset: cuts it into three parts, turns them into tokens and binarises these."""

import zipfile
from pathlib import Path

from fwp_fairseq.cli.processes import cores
from fwp_fairseq.files import write_atomically
from scripts.common.commands import words_of
from scripts.common.errors import RecipeError
from scripts.common.folder import Folder
from scripts.data import sources

SPLITS = ("train", "valid", "test")
STEPS = ("text", "preprocess")
# Stands for a space, as in SentencePiece's pieces.
SPACE = "\u2581"
SMOKE_CHARACTERS = 6000
TINY_SHAKESPEARE = sources.Source(
    "tinyshakespeare",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
# The server of its first author; the address of the publication no longer answers. The checksum is of either.
WIKITEXT103 = sources.Source(
    "wikitext103",
    "https://wikitext.smerity.com/wikitext-103-v1.zip",
    "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
)
# Name of each corpus to what it is, for the user.
CORPORA = {
    "wikitext103": "WikiText-103 in words",
    "tinyshakespeare": "the first 90 %, next 5 % and last 5 % of Tiny Shakespeare, in characters",
    "smoke": f"the first {SMOKE_CHARACTERS:,} characters of Tiny Shakespeare",
}


def _lines_up_to(text: str, characters: int) -> int:
    """Returns the end of the line that holds this character."""
    return text.index("\n", characters) + 1


def _parts(name: str, fetched: Path) -> dict[str, str]:
    """Returns the three parts of the text. Raises RecipeError for another file."""
    if name == "wikitext103":
        try:
            with zipfile.ZipFile(fetched) as archive:
                return {split: archive.read(f"wikitext-103/wiki.{split}.tokens").decode() for split in SPLITS}
        except (zipfile.BadZipFile, KeyError) as error:
            raise RecipeError(f"{fetched}: {error}") from None
    text = fetched.read_text(encoding="utf-8")
    if name == "smoke":
        text = text[: _lines_up_to(text, SMOKE_CHARACTERS)]
    first, second = (_lines_up_to(text, len(text) * part // 20) for part in (18, 19))
    return {"train": text[:first], "valid": text[first:second], "test": text[second:]}


def _characters(text: str) -> str:
    return "".join(f"{' '.join(line.replace(' ', SPACE))}\n" for line in text.split("\n")[:-1])


def preprocess(name: str, data: Path) -> list[str]:
    flags = {f"--{split}pref": data / "tokens" / split for split in SPLITS}
    flags |= {"--destdir": f"{data}/bin", "--workers": cores() if name == "wikitext103" else 1}
    return ["fairseq-preprocess", "--only-source", *words_of(flags)]


def prepare(name: str, data: Path) -> None:
    """Fills the folder `data`, except for steps that are finished. Waits if another process is filling it.

    Raises RecipeError if a file cannot be fetched, is damaged, or the folder holds another text.
    """
    folder = Folder(data, STEPS)
    source = WIKITEXT103 if name == "wikitext103" else TINY_SHAKESPEARE
    outputs = [data / path for split in SPLITS for path in (f"raw/{split}.txt", f"tokens/{split}")]

    def text() -> None:
        fetched = data / "fetched" / source.name
        sources.provide(source, fetched, lambda line: folder.say(f"  {line}"))
        for kind in ("raw", "tokens"):
            (data / kind).mkdir(exist_ok=True)
        for split, part in _parts(name, fetched).items():
            write_atomically(data / f"raw/{split}.txt", part)
            # The words of WikiText-103 stand apart already.
            write_atomically(data / f"tokens/{split}", part if name == "wikitext103" else _characters(part))

    with folder.locked(wait=True):
        folder.claim({"corpus": name, "what": CORPORA[name], source.name: source.sha256})
        folder.run("text", f"text: {CORPORA[name]}", {}, outputs, text)
        command = preprocess(name, data)
        # The number of workers is left out. It changes nothing, and the folder may be used on another machine.
        folder.binarise(command, command[:-1], "dict.txt")
