"""Word alignments of the training windows by eflomal, from which guided alignment learns (Garg et al. 2019)."""

from collections.abc import Iterator
from pathlib import Path

from fwp_fairseq.cli.translations import lines
from fwp_fairseq.files import write_atomically
from scripts.common.folder import Folder, RecipeError
from scripts.data.sources import folder

from .corpus import LANGUAGES, Corpus, pieces, read, training_windows


def prepare(corpus: Corpus, data: Path) -> None:
    """Adds the alignments to a prepared corpus, for --load-alignments; waits if another process is making them.

    Raises RecipeError without eflomal. Takes 4 minutes of one processor.
    """
    target, prefix = Folder(data, ("align",)), data / "bin/train.align.en-de"
    inputs = (data / "bin/dict.de.txt").stat().st_mtime_ns  # of another `bin`
    made = [prefix.with_name(f"{prefix.name}.{ending}") for ending in ("bin", "idx")]
    with target.locked(wait=True):
        target.run("align", "align the training windows", inputs, made, lambda: _make(corpus, data, prefix))


def _make(corpus: Corpus, data: Path, prefix: Path) -> None:
    from fairseq.binarizer import AlignmentDatasetBinarizer, FileBinarizer
    from fairseq.utils import parse_alignment

    windows = training_windows(corpus, read(folder("documents"))[0])
    paragraphs = [paragraph for window in windows for paragraph in window]
    texts = [pieces(data, [getattr(paragraph, language) for paragraph in paragraphs]) for language in LANGUAGES]
    aligned = zip(_links(*texts, data), *texts, strict=True)
    text = data / "bpe/train.align"
    write_atomically(text, "".join(f"{joined([next(aligned) for _ in window])}\n" for window in windows))
    FileBinarizer.multiprocess_dataset(str(text), "mmap", AlignmentDatasetBinarizer(parse_alignment), str(prefix))


def _links(source: list[list[str]], target: list[list[str]], data: Path) -> Iterator[set[str]]:
    """The pairs of pieces that eflomal links in both directions."""
    try:
        from eflomal import Aligner
    except ImportError as error:
        raise RecipeError(f"guided alignment needs the package eflomal ({error}): pip install eflomal==2.0.0") from None
    files = [str(data / f"bpe/links.{direction}") for direction in ("forward", "backward")]
    Aligner(n_samplers=1).align(*([" ".join(line) for line in text] for text in (source, target)), *files)
    forward, backward = map(lines, files)
    return (set(one.split()) & set(other.split()) for one, other in zip(forward, backward, strict=True))


def joined(paragraphs: list[tuple[set[str], list[str], list[str]]]) -> str:
    """The links of a window, whose paragraphs stand behind each other, of the links and pieces of each paragraph."""
    found, source, target = [], 0, 0
    for links, *texts in paragraphs:
        for s, t in sorted(tuple(map(int, link.split("-"))) for link in links):
            found.append(f"{source + s}-{target + t}")
        source, target = source + len(texts[0]), target + len(texts[1])
    return " ".join(found)
