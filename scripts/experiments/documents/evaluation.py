"""Translates the test passages with a checkpoint of a run, and scores them by length of the source.

BLEU and chrF are sacreBLEU's, of raw text against raw text.
"""

import hashlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fwp_fairseq.cli.bleu_tokenizer import bleu_metric, make_metric
from fwp_fairseq.cli.paragraphs import read_lines
from fwp_fairseq.cli.translations import generated
from fwp_fairseq.files import write_atomically
from fwp_fairseq.kinds import Attention
from scripts.common import bootstrap, process
from scripts.common.commands import DIRECTION, PLUGIN, words_of
from scripts.common.errors import RecipeError
from scripts.common.folder import Folder, content
from scripts.common.runner.run import Run
from scripts.common.runner.work import Work
from scripts.data.corpus import SENTENCEPIECE

from .corpus import is_pinned
from .training import best, read_curve

# Name of a bucket to the least and the greatest number of pieces of its sources, without the end of the sentence.
BUCKETS = {"64": (0, 64), "128": (65, 128), "256": (129, 256), "more": (257, 10**9)}
_LEAST = 20  # passages of a bucket on which two rows are compared
_ONE_OF = 5  # every fifth passage of other documents is translated


@dataclass(frozen=True)
class Translations:
    """The translated passages: length in pieces, reference, translation, and whether it was cut."""

    pieces: list[int]
    references: list[str]
    texts: list[str]
    cut: list[bool]

    def bucket(self, name: str) -> list[int]:
        """Returns the numbers of the passages in a bucket, or of all."""
        least, most = BUCKETS.get(name, (0, 10**9))
        return [number for number, length in enumerate(self.pieces) if least <= length <= most]


def decode_command(run: Run, checkpoint: Path, source: Path, device: dict, window: int | None) -> list[str]:
    overrides = None
    if window is not None:
        cross = Attention.parse(run.row.kinds["cross"]).changed({"source_window": window})
        overrides = str({"fwp_cross": str(cross)})
    flags = {
        "--user-dir": run.row.more.get("--user-dir", PLUGIN),
        "--path": checkpoint,
        **DIRECTION,
        "--input": source,
        "--buffer-size": 10**6,
        "--bpe": "sentencepiece",
        "--sentencepiece-model": run.data / SENTENCEPIECE,
        **run.preset.decoding,
        "--model-overrides": overrides,
        **device,
    }
    return ["fairseq-interactive", f"{run.data}/bin", *words_of(flags)]


def translate(
    run: Run, checkpoint: Path, words: int, one_of: int, device: dict, say: Callable, options: dict,
    window: int | None = None, where: Path | None = None,
) -> tuple[Translations, float]:  # fmt: skip
    """Translates every ``one_of``-th passage of ``words`` words, unless the folder has the result from before.

    Returns the translations, and the seconds that they took.

    ``window`` is how many positions of the source a step reads, None for all; ``where`` is the folder of the result, by
    default that of the checkpoint.
    """
    folder = Folder(_place(where or checkpoint.parent, words, one_of, window), ("decode",), say)
    source, log = folder.path / "source", folder.path / "decode.log"
    command = decode_command(run, checkpoint, source, device, window)
    passages = read_lines(run.data / "windows" / f"test{words}.en")[::one_of]

    def work() -> dict:
        write_atomically(source, "".join(f"{line}\n" for line in passages))
        log.unlink(missing_ok=True)
        return {"seconds": process.run(command, log, **options).seconds}

    inputs = [content(checkpoint), hashlib.sha256("\n".join(passages).encode()).hexdigest(), command]
    with folder.locked():
        title = f"translate passages of {words} words"
        seconds = folder.run("decode", title, inputs, [log], work, command)["seconds"]
    return read(run, log, words, one_of), seconds


def _place(where: Path, words: int, one_of: int, window: int | None) -> Path:
    return where / (f"test{words}-one-of-{one_of}" + ("" if window is None else f"-window-{window}"))


def translations(run: Run, words: int) -> Translations:
    """Returns a finished run's translations of all test passages of this length; RecipeError if it is not finished."""
    return read(run, run.finished(_place(best(run).parent, words, 1, None) / "decode.log", "documents"), words, 1)


def read(run: Run, log: Path, words: int, one_of: int) -> Translations:
    """Reads what was translated. Raises RecipeError if a passage is missing.

    A translation counts as cut if it is as long as the limit for its source allows. fairseq's own limit is that of the
    longest source in a batch.
    """
    texts, hypotheses = (generated(read_lines(log), str(log), kind) for kind in "DH")
    pieces = [len(line.split()) for line in read_lines(run.data / "bpe" / f"test{words}.en")[::one_of]]
    if not len(pieces) == len(hypotheses) == len(texts):
        raise RecipeError(f"{log}: expected {len(pieces)} translations, found {len(hypotheses)}")
    slope, offset = (run.preset.decoding[f"--max-len-{name}"] for name in "ab")
    limits = [int(slope * (length + 1) + offset) for length in pieces]  # fairseq counts the end of the source
    return Translations(
        pieces,
        read_lines(run.data / "windows" / f"test{words}.de")[::one_of],
        texts,
        [len(hypothesis.split()) >= limit for hypothesis, limit in zip(hypotheses, limits, strict=True)],
    )


def scores(translated: Translations) -> dict:
    """Computes BLEU, chrF, length ratio of each bucket with passages, and the shares of translations cut or empty."""
    bleu, chrf, buckets = bleu_metric(translated.references), make_metric("chrf"), {}
    for name in ("all", *BUCKETS):
        if chosen := translated.bucket(name):
            texts, references = (
                [column[number] for number in chosen] for column in (translated.texts, translated.references)
            )
            score = bleu.corpus_score(texts, [references])
            buckets[name] = {
                "windows": len(chosen),
                "bleu": round(score.score, 2),
                "chrf": round(chrf.corpus_score(texts, [references]).score, 2),
                "length_ratio": round(score.sys_len / score.ref_len, 3),
            }
    total = len(translated.texts)
    return {
        "buckets": buckets,
        "cut": round(sum(translated.cut) / total, 4),
        "empty": round(sum(not text.strip() for text in translated.texts) / total, 4),
        "signature": bleu.get_signature().format(),
        "chrf_signature": chrf.get_signature().format(),
    }


def compared(baseline: Run, run: Run) -> dict[str, dict]:
    """Compares two finished runs on the passages of each length, and on those in a bucket if these are not few."""
    comparisons = {}
    for words in run.preset.corpus.test_words:
        theirs, ours = (translations(each, words) for each in (baseline, run))
        for name in ("all", *BUCKETS):
            if len(chosen := ours.bucket(name)) >= _LEAST:
                columns = ([column[n] for n in chosen] for column in (theirs.texts, ours.texts, ours.references))
                what = {"table": "documents_paired", "corpus": corpus_of(run), "words": words, "bucket": name}
                comparisons[f"{words} words, {name}"] = {**what, **bootstrap.compare(*columns)}
    return comparisons


def corpus_of(run: Run) -> str:
    return "pinned" if is_pinned(run.data) else "own"


def _tests(run: Run, one_of: int, *how, **more) -> dict:
    """Scores the best checkpoint on the passages of each length; ``how`` and ``more`` are arguments of `translate`."""
    tests = {}
    for words in run.preset.corpus.test_words:
        translated, seconds = translate(run, best(run), words, one_of, *how, **more)
        tests[str(words)] = {**scores(translated), "decode_seconds": round(seconds, 1)}
    return tests


def on_others(run: Run, data: Path, device: dict, say: Callable, options: dict) -> dict:
    """Returns the record of a finished run on one of so many passages of other documents, those of ``data``."""
    tests = _tests(replace(run, data=data), _ONE_OF, device, say, options, where=run.path / data.name)
    return {"table": "documents_others", **_who(run), "documents": data.name, "one_of": _ONE_OF, "tests": tests}


def with_window(run: Run, window: int, device: dict, say: Callable, options: dict) -> dict:
    """Returns the record of a finished run on all test passages, with a source window of so many positions."""
    tests = _tests(run, 1, device, say, options, window)
    who = _who(run) | {"corpus": corpus_of(run)}
    return {"table": "documents_source_window", **who, "window": window, "tests": tests}


def _who(run: Run) -> dict:
    return {"preset": run.preset.name, "row": run.row.name, "seed": run.seed}


def evaluate(run: Run, work: Work, trained: dict, device: dict) -> dict:
    """Returns the record of a training, whose best checkpoint translates all test passages."""
    curve = [point for _, point in sorted(read_curve(run).items())]
    return {
        "table": "documents",
        **_who(run),
        "corpus": corpus_of(run),
        "updates": trained["updates"],
        "valid_loss": min(point["valid_loss"] for point in curve),
        "cpu_seconds": curve[-1]["cpu_seconds"],
        "curve": [[point["updates"], point["valid_loss"], point["cpu_seconds"]] for point in curve],
        "tests": _tests(run, 1, device, work.say, work.options),
        "train_command": trained["command"],
        "command": shlex.join(work.command),
        "environment": trained["environment"],
        "evaluated": work.conditions["environment"],
    }


def lines_about(record: dict) -> list[str]:
    """Returns what is said of a record."""
    said = []
    for words, test in record["tests"].items():
        bleu = ", ".join(f"{name} {scores['bleu']:.2f}" for name, scores in test["buckets"].items())
        read = f", {record['window']} positions read in a step" if "window" in record else ""
        said.append(f"passages of {words} words{read}: BLEU {bleu}")
    return said
