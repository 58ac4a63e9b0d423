"""Makes the corpus of WMT14 English-German: downloads, joint SentencePiece BPE of the raw text, fairseq's data.

The training text is that of fairseq's examples/translation/prepare-wmt14en2de.sh. The sets of validation and test,
newstest2013 and newstest2014, are sacreBLEU's, which checks their checksums.
"""

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fwp_fairseq.cli.pieces import learn
from fwp_fairseq.cli.processes import cores
from fwp_fairseq.files import replaced, write_atomically
from scripts.common.commands import binarising
from scripts.common.errors import RecipeError
from scripts.common.folder import Folder
from scripts.data import sources
from scripts.data.corpus import SENTENCEPIECE

NAME, LANGUAGES = "wmt14", ("en", "de")
STEPS = ("text", "pieces", "encode", "preprocess")
VOCABULARY, LONGEST, MOST_RATIO = 32000, 250, 1.5
# Pieces are learnt on one of so many pairs, which takes less memory, and cover this share of the characters; the rarer
# ones are mostly Common Crawl's.
LEARN_EVERY, COVERAGE = 2, 0.9999
# Names of fairseq's sets to those of sacreBLEU's test sets.
NEWS = {"valid": "wmt13", "test": "wmt14/full"}
BLOCK = 100_000


@dataclass(frozen=True)
class Archive:
    """A training text: its files in the archive, without the language, and the published number of pairs."""

    url: str
    member: str
    pairs: int | None = None

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


# statmt.org publishes no checksums, and no number for News Commentary v12.
ARCHIVES = (
    Archive("http://statmt.org/wmt13/training-parallel-europarl-v7.tgz", "training/europarl-v7.de-en", 1920209),
    Archive("http://statmt.org/wmt13/training-parallel-commoncrawl.tgz", "commoncrawl.de-en", 2399123),
    Archive(
        "http://data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz",
        "training/news-commentary-v12.de-en",
    ),
)


def prepare(data: Path) -> None:
    """Fills the folder, except for finished steps; waits if another process is filling it. Raises RecipeError."""
    folder = Folder(data, STEPS)
    sets = ("train", *NEWS)
    raw, encoded = ([data / kind / f"{name}.{lang}" for name in sets for lang in LANGUAGES] for kind in ("raw", "bpe"))
    command = preprocess(data)
    with folder.locked(wait=True):
        folder.claim({"corpus": NAME, "vocabulary": VOCABULARY})
        folder.run("text", "download and unpack (1.8 GB)", {}, raw, lambda: _texts(data, folder.say))
        folder.run("pieces", f"learn {VOCABULARY:,} pieces", {}, [data / SENTENCEPIECE], lambda: _learn(data))
        folder.run("encode", "split into pieces, clean", {}, encoded, lambda: _encode(data))
        # The number of workers is left out. It changes nothing, and the folder may be used on another machine.
        folder.binarise(command, command[:-1], "dict.de.txt")


def preprocess(data: Path) -> list[str]:
    return binarising(data, "valid", ("test",), cores())


def _texts(data: Path, say) -> None:
    from sacrebleu import DATASETS

    (data / "raw").mkdir(exist_ok=True)
    for name, news in NEWS.items():
        try:
            paths = DATASETS[news].get_files("en-de")[:2]
        except OSError as error:
            raise RecipeError(f"{news}: sacreBLEU cannot download it ({error}); try again with a network") from None
        for language, path in zip(LANGUAGES, paths, strict=True):
            write_atomically(data / f"raw/{name}.{language}", Path(path).read_bytes())
    with replaced(data / "raw/train.en") as en, replaced(data / "raw/train.de") as de:
        for archive in ARCHIVES:
            path = sources.folder(NAME) / archive.file
            if not path.is_file():
                path = data / archive.file
            if not path.is_file():
                sources.download(archive.url, path, NAME, say)
            say(f"  {archive.file}: {_unpack(archive, path, {'en': en, 'de': de}):,} pairs")


def _unpack(archive: Archive, path: Path, files: dict) -> int:
    """Appends both sides of a text to the files; returns the number of pairs. Raises RecipeError."""
    counts = []
    try:
        with gzip.open(path) as content, tarfile.open(fileobj=content) as tar:
            for language, file in files.items():
                lines = tar.extractfile(f"{archive.member}.{language}")
                counts.append(sum(1 for line in lines if file.write(line.rstrip(b"\r\n") + b"\n")))
            while content.read(BLOCK):  # gzip compares its checksum at the end
                pass
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, KeyError) as error:
        raise RecipeError(f"{path}: not a whole archive with {archive.member}: {error}; remove it") from None
    if len({*counts, archive.pairs or counts[0]}) > 1:
        expected = f"the published {archive.pairs:,}" if archive.pairs else "as many"
        raise RecipeError(f"{path}: expected {expected} lines on both sides, found {counts[0]:,} and {counts[1]:,}")
    return counts[0]


def _lines(path: Path) -> Iterator[str]:
    # Only \n ends a sentence, because lines of Common Crawl contain other separators.
    with open(path, encoding="utf-8", newline="\n") as file:
        yield from (line.removesuffix("\n") for line in file)


def _pairs(data: Path, name: str) -> Iterator[tuple[str, str]]:
    return zip(*(_lines(data / f"raw/{name}.{language}") for language in LANGUAGES), strict=True)


def _learn(data: Path) -> None:
    sides = (side for pair in islice(_pairs(data, "train"), 0, None, LEARN_EVERY) for side in pair)
    write_atomically(data / SENTENCEPIECE, learn(sides, VOCABULARY, COVERAGE, cores()))


def _encode(data: Path) -> None:
    """Writes the pieces of all sets, and says how many training pairs are clean."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(data / SENTENCEPIECE))
    (data / "bpe").mkdir(exist_ok=True)
    for name in ("train", *NEWS):
        pairs, read, written = _pairs(data, name), 0, 0
        with replaced(data / f"bpe/{name}.en") as en, replaced(data / f"bpe/{name}.de") as de:
            while block := list(islice(pairs, BLOCK)):
                sides = (processor.encode(list(side), out_type=str) for side in zip(*block, strict=True))
                kept = [pair for pair in zip(*sides, strict=True) if name != "train" or is_clean(*map(len, pair))]
                for file, column in ((en, 0), (de, 1)):
                    file.write("".join(f"{' '.join(pair[column])}\n" for pair in kept).encode())
                read, written = read + len(block), written + len(kept)
        print(f"  {name}: {written:,} of {read:,} pairs kept", flush=True)


def is_clean(first: int, second: int) -> bool:
    """Tells whether a training pair of sides of so many pieces is kept, by the limits of fairseq's script."""
    shorter, longer = sorted((first, second))
    return shorter >= 1 and longer <= LONGEST and longer <= MOST_RATIO * shorter
