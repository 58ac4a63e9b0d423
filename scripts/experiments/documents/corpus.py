"""Prepares the corpus: passages of consecutive paragraphs of one document, joint SentencePiece BPE, fairseq's data."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

from fwp_fairseq.cli.paragraphs import filled, lines_of
from fwp_fairseq.cli.pieces import learn
from fwp_fairseq.files import write_atomically
from scripts.common.commands import binarising
from scripts.common.errors import RecipeError
from scripts.common.folder import Folder
from scripts.common.runner.call import Call
from scripts.data.corpus import SENTENCEPIECE
from scripts.data.sources import folder, unpacked

LANGUAGES = ("en", "de")
STEPS = ("text", "preprocess")
# The documents with which this project was measured. Checksums are of the texts, because the bytes of a .gz file depend
# on the program that packed it.
SHA256 = {
    "train.en": "612c361b38d96b2eba2f163ba4ca577bbbc4cbef2ecdfcb26d3c9cbc7c3e651e",
    "train.de": "0ac35a0fd6a82fdedb651d684287de35f6154881ea911011ed45693df470521e",
    "train.doc": "1fdcd10d45718902f9345526e9cd982a12edbc8e2fd7df36e1fa4b172149a872",
    "valid.en": "530ed1ae279287514d0dba73ae31802fdc8b39b3d86e9d0cca55924cb56f3d3f",
    "valid.de": "fe2510e36879c592ad2e531b59bf77bb4737e6cd24b8f8d053e64735048c3680",
    "valid.doc": "0c29f8b3994250bbcd50494cee22e7122bb2b029f45ebb32cbdb964593474e16",
    "test.en": "22eda56cd58ca07e7fda9cd8672bd12054270dcfa478f01a23b5044c7ed279b7",
    "test.de": "df7effa3af9133e97e3e063b445e44858c248c5e0e28cdb2e1fa139d92d23c08",
    "test.doc": "fafd153a45a208a35f33f1c112cba878c381b9b5548d25db2498583f671a34f9",
    "manuals/train.en": "f1c09d33682a130f7c221521ada9e374b53f524251245a1a03cf5e568bff9c71",
    "manuals/train.de": "2b2a751dc6aec7aa1ffdfa6519c5e9f5a821bee3e9b08eb3dca68d0ad1e5edd9",
    "manuals/train.doc": "0f3fa85492b82f0501152a2685cae780b2820ed9d12fbd6e282f21ec678b2723",
}
PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Paragraph:
    document: str
    en: str
    de: str


@dataclass(frozen=True)
class Corpus:
    """Sizes of the corpus that is made of the documents.

    - `words`: the length of the passages of training and validation in English words.
    - `test_words`: the lengths of the passages of the test sets, which are fairseq's "test", "test1", and so on.
    - `vocabulary`: the number of joint pieces.
    - `documents`: only so many documents of each part are used; None for all.
    - `more`: folders of FWP_DATA whose `train` is added to that of `documents`, such as "manuals".
    """

    words: int = 150
    test_words: tuple[int, ...] = (150, 300, 600)
    vocabulary: int = 4000
    documents: int | None = None
    more: tuple[str, ...] = ()

    @property
    def sets(self) -> dict[str, tuple[str, int]]:
        """Maps the name of a text to the part of the documents that it is made of, and the words of its passages."""
        return {
            "train": ("train", self.words),
            "valid": ("valid", self.words),
            **{f"test{words}": ("test", words) for words in self.test_words},
        }


def passages(paragraphs: Iterable[Paragraph], words: int) -> Iterator[list[Paragraph]]:
    """Groups consecutive paragraphs of a document that have at most so many English words together.

    A longer paragraph is a passage of its own.
    """
    for _, few in groupby(paragraphs, lambda paragraph: paragraph.document):
        yield from filled(few, lambda paragraph: len(paragraph.en.split()), words)


def read(documents: Path, names: Iterable[str] = PARTS) -> tuple[dict[str, list[Paragraph]], dict[str, str]]:
    """Returns the paragraphs of these parts of the documents, and the checksums of their files. Raises RecipeError."""
    parts, sums = {}, {}
    for part in names:
        columns = []
        for kind in ("doc", *LANGUAGES):
            path = documents / f"{part}.{kind}.gz"
            if not path.is_file():
                raise RecipeError(f"{path}: no such file; FWP_DATA says where documents are, and extract.py makes them")
            text = unpacked(path.read_bytes(), path)
            sums[f"{part}.{kind}"] = hashlib.sha256(text).hexdigest()
            columns.append(lines_of(text, path))
        if len(set(map(len, columns))) > 1:
            counts = ", ".join(str(len(column)) for column in columns)
            raise RecipeError(f"{documents / part}.*.gz: expected as many lines in doc, en and de, actual {counts}")
        parts[part] = [Paragraph(*cells) for cells in zip(*columns, strict=True)]
    return parts, sums


def read_all(corpus: Corpus) -> tuple[dict[str, list[Paragraph]], dict[str, str]]:
    """Returns the parts of the documents, with what `more` adds to train, and the checksums of all files.

    Nothing is added that stands in valid or test. Raises RecipeError.
    """
    parts, sums = read(folder("documents"))
    for name in corpus.more:
        added, theirs = read(folder(name), ["train"])
        sums |= {f"{name}/{file}": checksum for file, checksum in theirs.items()}
        parts["train"] = without_tests(parts | {"train": parts["train"] + added["train"]})
    return parts, sums


def without_tests(parts: dict[str, list[Paragraph]]) -> list[Paragraph]:
    """Returns the paragraphs of train of which no text of eight words or more stands in valid or test."""
    apart = {text for part in ("valid", "test") for p in parts[part] for text in (p.en, p.de) if len(text.split()) >= 8}
    return [p for p in parts["train"] if p.en not in apart and p.de not in apart]


def _sums(data: Path) -> dict:
    return json.loads((data / "config.json").read_text())["corpus"]


def is_pinned(data: Path) -> bool:
    """Tells whether a prepared corpus is made of the documents with which this project was measured."""
    return _sums(data).items() <= SHA256.items()


def require_measured(call: Call) -> None:
    """Raises RecipeError if records are asked for of other documents."""
    if call.record and not is_pinned(call.data):
        raise RecipeError(f"--record: {call.data} is made of other documents than those of this project's results")


def digest(data: Path) -> str | None:
    """Tells the documents of a prepared corpus from others; None if it is not prepared."""
    if not (data / "config.json").exists():
        return None
    return hashlib.sha256(json.dumps(_sums(data), sort_keys=True).encode()).hexdigest()[:16]


def _first(paragraphs: Iterable[Paragraph], documents: int | None) -> list[Paragraph]:
    groups = groupby(paragraphs, lambda paragraph: paragraph.document)
    return [paragraph for _, few in islice(groups, documents) for paragraph in few]


def text_of(passage: list[Paragraph], language: str) -> str:
    return " ".join(getattr(paragraph, language) for paragraph in passage)


def pieces(data: Path, texts: list[str]) -> list[list[str]]:
    """Divides texts into the pieces of a corpus."""
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(data / SENTENCEPIECE)).encode(texts, out_type=str)


def make(corpus: Corpus, parts: dict[str, list[Paragraph]], data: Path) -> dict:
    """Writes the passages of all sets, the model of pieces, and the passages in pieces."""
    parts = {part: _first(paragraphs, corpus.documents) for part, paragraphs in parts.items()}
    sentences = [text for paragraph in parts["train"] for text in (paragraph.en, paragraph.de)]
    write_atomically(data / SENTENCEPIECE, learn(sentences, corpus.vocabulary))
    return {"lines": {name: _write(name, parts[part], words, data) for name, (part, words) in corpus.sets.items()}}


def _write(name: str, paragraphs: list[Paragraph], words: int, data: Path) -> int:
    """Writes a set, as text and in pieces; returns the number of its passages."""
    made = list(passages(paragraphs, words))
    for language in LANGUAGES:
        texts = [text_of(passage, language) for passage in made]
        encoded = [" ".join(line) for line in pieces(data, texts)]
        for kind, content in (("windows", texts), ("bpe", encoded)):
            (data / kind).mkdir(exist_ok=True)
            write_atomically(data / kind / f"{name}.{language}", "".join(f"{line}\n" for line in content))
    return len(made)


def others(corpus: Corpus, data: Path, documents: Path) -> Path:
    """Makes test passages of all documents in another folder, in the pieces of a prepared corpus; returns their folder.

    Raises RecipeError for incomplete documents, and if their folder was made of others than these.
    """
    parts, sums = read(documents)
    target = Folder(data.with_name(f"{data.name}-{documents.name}"), ())
    with target.locked(wait=True):
        target.claim({"corpus": sums})
        for name in (SENTENCEPIECE, "bin"):
            if not (target.path / name).exists():
                (target.path / name).unlink(missing_ok=True)
                (target.path / name).symlink_to((data / name).resolve())
        for words in corpus.test_words:
            _write(f"test{words}", [paragraph for part in parts.values() for paragraph in part], words, target.path)
    return target.path


def preprocess(corpus: Corpus, data: Path) -> list[str]:
    return binarising(data, "valid", (f"test{words}" for words in corpus.test_words))


def prepare(corpus: Corpus, data: Path) -> None:
    """Makes texts, pieces and binarised corpus in ``data``; waits if another process is making them.

    Raises RecipeError. Takes half a minute.
    """
    parts, sums = read_all(corpus)
    target = Folder(data, STEPS)
    if not sums.items() <= SHA256.items():
        target.say("these are other documents than those of this project's results")
    made = [data / kind / f"{name}.{lang}" for kind in ("windows", "bpe") for name in corpus.sets for lang in LANGUAGES]
    with target.locked(wait=True):
        sizes = {"words": corpus.words, "test words": list(corpus.test_words), "vocabulary": corpus.vocabulary}
        target.claim({"corpus": sums, **sizes, "documents": corpus.documents})
        title = f"passages and joint BPE ({corpus.vocabulary} pieces)"
        target.run("text", title, {}, [*made, data / SENTENCEPIECE], lambda: make(corpus, parts, data))
        command = preprocess(corpus, data)
        target.binarise(command, command, "dict.de.txt")
