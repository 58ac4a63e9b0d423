"""The exact commands of the quickstart, as argument lists. Paths are relative to the repository root."""

from __future__ import annotations

from pathlib import Path

from scripts.common.commands import USER_DIR, flags_of, printed, words_of
from scripts.data import corpus

from . import settings


def train(
    data: Path, run: Path, attention: str, smoke: bool, seed: int, device: list[str], more: list[str]
) -> list[str]:
    average = settings.SMOKE_AVERAGE_LAST if smoke else settings.AVERAGE_LAST
    theirs = flags_of(more)
    # With another feature map the default width may be impossible, so neither default is used.
    chosen = settings.MODEL | ({} if "--fwp-feature-map" in theirs else settings.ATTENTION[attention])
    chosen |= settings.TRAINING | (settings.SMOKE_TRAINING if smoke else {})
    return [
        *("fairseq-train", f"{data}/bin", *USER_DIR, "--task", "translation"),
        *("--source-lang", "en", "--target-lang", "de"),
        *words_of({flag: value for flag, value in chosen.items() if flag not in theirs}),
        *("--seed", str(seed), "--save-dir", f"{run}/checkpoints", "--keep-last-epochs", str(average)),
        *("--num-workers", "0", "--log-format", "json", *device),
        *more,
    ]


def averaged(run: Path) -> Path:
    """The checkpoint that is decoded."""
    return run / "checkpoints/average.pt"


def average(run: Path, smoke: bool) -> list[str]:
    last = settings.SMOKE_AVERAGE_LAST if smoke else settings.AVERAGE_LAST
    return [
        *("fwp", "average", "--checkpoint-dir", f"{run}/checkpoints", "--last", str(last)),
        *("--output", str(averaged(run))),
    ]


def _model(data: Path, checkpoint: Path, device: list[str]) -> list[str]:
    return [
        *(f"{data}/bin", *USER_DIR, "--path", str(checkpoint)),
        *("--source-lang", "en", "--target-lang", "de"),
        *("--bpe", "sentencepiece", "--sentencepiece-model", f"{data}/{corpus.SENTENCEPIECE}"),
        *[flag for flag in device if flag == "--cpu"],
    ]


def generate(data: Path, run: Path, smoke: bool, device: list[str]) -> list[str]:
    return [
        *("fairseq-generate", *_model(data, averaged(run), device)),
        *("--gen-subset", "test1" if smoke else "test"),
        *words_of(settings.DECODING | (settings.SMOKE_DECODING if smoke else {})),
        *("--num-workers", "0", "--log-format", "none", "--results-path", f"{run}/generate"),
    ]


def generated(run: Path, smoke: bool) -> Path:
    return run / "generate" / f"generate-{'test1' if smoke else 'test'}.txt"


def reference(data: Path, smoke: bool) -> Path:
    return data / "raw" / ("smoke.de" if smoke else "test_2016_flickr.de")


def bleu(data: Path, run: Path, smoke: bool) -> list[str]:
    return [
        *("fwp", "bleu", "--hypotheses", str(generated(run, smoke))),
        *("--references", str(reference(data, smoke))),
    ]


def interactive(data: Path, checkpoint: Path, device: list[str]) -> str:
    """The shell line that translates a sentence; ``device`` may be any command with the device's flags."""
    words = [
        "fairseq-interactive",
        *_model(data, checkpoint, device),
        "--beam",
        str(settings.DECODING["--beam"]),
    ]
    return f"echo 'Two dogs are playing in the snow.' | {printed(words)}"
