"""Prepares the text: raw corpus, joint SentencePiece BPE, and the corpus in pieces. The result is always the same."""

from pathlib import Path

from fwp_fairseq.cli.paragraphs import read_lines
from fwp_fairseq.cli.pieces import learn
from fwp_fairseq.files import write_atomically
from scripts.common.commands import binarising
from scripts.common.folder import Folder

from . import multi30k

VOCABULARY = 4000
SENTENCEPIECE = "spm.model"
SMOKE_SENTENCES = 100  # the size of the smoke test set, the first sentences of the test set
STEPS = ("text", "preprocess")


def configuration() -> dict:
    return {"corpus": multi30k.SHA256, "vocabulary": VOCABULARY, "smoke sentences": SMOKE_SENTENCES}


def outputs(data: Path) -> list[Path]:
    names = [f"{split}.{language}" for split in (*multi30k.SPLITS, "smoke") for language in multi30k.LANGUAGES]
    return [*(data / folder / name for folder in ("raw", "bpe") for name in names), data / SENTENCEPIECE]


def prepare(data: Path) -> None:
    """Makes text, pieces and binarised corpus in a folder; waits if another process is making them."""
    folder = Folder(data, STEPS)
    with folder.locked(wait=True):
        folder.claim(configuration())
        title, made = f"corpus and joint BPE ({VOCABULARY} pieces)", outputs(data)
        folder.run("text", title, {}, made, lambda: make(data, lambda text: folder.say(f"  {text}")))
        command = preprocess(data)
        folder.binarise(command, command, "dict.de.txt")


def preprocess(data: Path) -> list[str]:
    return binarising(data, "val", ("test_2016_flickr", "smoke"))


def make(data: Path, say=print) -> None:
    """Makes the raw corpus, the BPE model and the corpus in pieces; RecipeError if the corpus cannot be provided."""
    raw = data / "raw"
    multi30k.provide(raw, say)
    for language in multi30k.LANGUAGES:
        test = (raw / f"test_2016_flickr.{language}").read_bytes().split(b"\n")
        write_atomically(raw / f"smoke.{language}", b"\n".join(test[:SMOKE_SENTENCES]) + b"\n")
    model = learn([line for side in multi30k.LANGUAGES for line in read_lines(f"{raw}/train.{side}")], VOCABULARY)
    write_atomically(data / SENTENCEPIECE, model)
    _encode(model, raw, data / "bpe")


def _encode(model: bytes, raw: Path, bpe: Path) -> None:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    bpe.mkdir(exist_ok=True)
    for split in (*multi30k.SPLITS, "smoke"):
        for language in multi30k.LANGUAGES:
            pieces = processor.encode(read_lines(f"{raw}/{split}.{language}"), out_type=str)
            text = "".join(" ".join(line) + "\n" for line in pieces)
            write_atomically(bpe / f"{split}.{language}", text)
