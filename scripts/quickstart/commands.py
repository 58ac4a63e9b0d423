"""The exact commands of the quickstart, as argument lists. Paths are relative to the repository root."""

from __future__ import annotations

import shlex
from pathlib import Path

from . import settings

BIN = ".venv/bin"
USER_DIR = ["--user-dir", "fwp_fairseq"]
SENTENCEPIECE = "spm.model"


def printed(command: list[str]) -> str:
    """For a shell, one flag a line when it is long."""
    flat = shlex.join(command)
    if len(flat) <= 100:
        return flat
    lines = [""]
    for word in command:
        if word.startswith("--"):
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + shlex.quote(word)
    return " \\\n    ".join(lines)


def flags_of(command: list[str]) -> dict[str, str]:
    """Flag to value, of the last occurrence; what stands before the first flag has the key ''."""
    flags: dict[str, list[str]] = {"": []}
    key = ""
    for word in command:
        if word.startswith("--"):
            key, _, value = word.partition("=")
            flags[key] = [value] if value else []
        else:
            flags[key].append(word)
    return {key: " ".join(words) for key, words in flags.items()}


def _flat(flags: dict) -> list[str]:
    return [str(word) for pair in flags.items() for word in pair]


def preprocess(data: Path) -> list[str]:
    return [
        f"{BIN}/fairseq-preprocess",
        *("--source-lang", "en", "--target-lang", "de", "--joined-dictionary"),
        *("--trainpref", f"{data}/bpe/train", "--validpref", f"{data}/bpe/val"),
        *("--testpref", f"{data}/bpe/test_2016_flickr,{data}/bpe/smoke"),
        *("--destdir", f"{data}/bin", "--workers", "1"),
    ]


def train(
    data: Path, run: Path, attention: str, smoke: bool, seed: int, device: list[str], more: list[str]
) -> list[str]:
    average = settings.SMOKE_AVERAGE_LAST if smoke else settings.AVERAGE_LAST
    theirs = flags_of(more)
    # Another feature map has other widths.
    chosen = settings.MODEL | ({} if "--fwp-feature-map" in theirs else settings.ATTENTION[attention])
    chosen |= settings.TRAINING | (settings.SMOKE_TRAINING if smoke else {})
    return [
        *(f"{BIN}/fairseq-train", f"{data}/bin", *USER_DIR, "--task", "translation"),
        *("--source-lang", "en", "--target-lang", "de"),
        *_flat({flag: value for flag, value in chosen.items() if flag not in theirs}),
        *("--seed", str(seed), "--save-dir", f"{run}/checkpoints", "--keep-last-epochs", str(average)),
        *("--num-workers", "0", "--log-format", "json", *device),
        *more,
    ]


def average(run: Path, smoke: bool) -> list[str]:
    last = settings.SMOKE_AVERAGE_LAST if smoke else settings.AVERAGE_LAST
    return [
        *(f"{BIN}/fwp", "average", "--checkpoint-dir", f"{run}/checkpoints", "--last", str(last)),
        *("--output", f"{run}/checkpoints/average.pt"),
    ]


def _model(data: Path, run: Path, device: list[str]) -> list[str]:
    return [
        *(f"{data}/bin", *USER_DIR, "--path", f"{run}/checkpoints/average.pt"),
        *("--source-lang", "en", "--target-lang", "de"),
        *("--bpe", "sentencepiece", "--sentencepiece-model", f"{data}/{SENTENCEPIECE}"),
        *[flag for flag in device if flag == "--cpu"],
    ]


def generate(data: Path, run: Path, smoke: bool, device: list[str]) -> list[str]:
    return [
        *(f"{BIN}/fairseq-generate", *_model(data, run, device)),
        *("--gen-subset", "test1" if smoke else "test"),
        *_flat(settings.DECODING | (settings.SMOKE_DECODING if smoke else {})),
        *("--num-workers", "0", "--log-format", "none", "--results-path", f"{run}/generate"),
    ]


def generated(run: Path, smoke: bool) -> Path:
    return run / "generate" / f"generate-{'test1' if smoke else 'test'}.txt"


def reference(data: Path, smoke: bool) -> Path:
    return data / "raw" / ("smoke.de" if smoke else "test_2016_flickr.de")


def bleu(data: Path, run: Path, smoke: bool) -> list[str]:
    return [
        *(f"{BIN}/fwp", "bleu", "--hypotheses", str(generated(run, smoke))),
        *("--references", str(reference(data, smoke))),
    ]


def interactive(data: Path, run: Path, device: list[str]) -> str:
    words = [f"{BIN}/fairseq-interactive", *_model(data, run, device), "--beam", str(settings.DECODING["--beam"])]
    return f"echo 'Two dogs are playing in the snow.' | {printed(words)}"
