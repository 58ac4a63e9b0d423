"""Builds the commands of one run as argument lists. Paths are relative to the repository root where possible."""

from pathlib import Path

from scripts.common.commands import USER_DIR, device, flags_of, words_of
from scripts.common.errors import RecipeError
from scripts.common.runner.gpus import Gpus
from scripts.common.runner.run import Run, settings
from scripts.data import corpus

from .preset import TranslationPreset

DISTRIBUTION_FLAGS = ("--max-tokens", "--update-freq", "--distributed-world-size", "--cpu", "--num-workers")


class TranslationRun(Run):
    """One row of a preset with one seed."""

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoints" / ("checkpoint_best.pt" if self.preset.average is None else "average.pt")

    @property
    def generated(self) -> Path:
        return self.path / "generate" / f"generate-{self.preset.test}.txt"

    @property
    def reference(self) -> Path:
        return self.data / self.preset.reference


def update_freq(preset: TranslationPreset, text: str, world: int) -> int:
    """Returns how many batches to accumulate, so that an update sees `tokens_per_update` with any number of GPUs."""
    max_tokens = int(text) if text.isdecimal() else 0
    if not max_tokens:
        raise RecipeError(f"--max-tokens {text}: expected a whole number from 1 up")
    batches, rest = divmod(preset.tokens_per_update, max_tokens * world)
    if rest or not batches:
        whole = preset.tokens_per_update // max_tokens
        possible = ", ".join(str(n) for n in range(1, whole + 1) if preset.tokens_per_update % (max_tokens * n) == 0)
        raise RecipeError(
            f"{world} GPUs of --max-tokens {max_tokens} cannot share {preset.tokens_per_update:,} tokens an update "
            f"evenly; expected a number of GPUs among {possible or 'none with this --max-tokens'}"
        )
    return batches


def _direction(preset: TranslationPreset) -> dict:
    return {"--source-lang": preset.source, "--target-lang": preset.target}


def train(run: TranslationRun, gpus: Gpus) -> list[str]:
    preset, world = run.preset, max(1, len(gpus))
    flags = preset.model | run.row.flags | preset.training
    freq = update_freq(preset, str(run.user_flags.get("--max-tokens", flags["--max-tokens"])), world)
    flags |= {"--update-freq": freq, "--num-workers": 2 if gpus else 0}
    flags |= device(gpus, preset.fp16) | ({"--distributed-world-size": world} if gpus else {})
    return run.training({"--task": "translation"} | _direction(preset), flags)


def configuration(run: TranslationRun, gpus: Gpus) -> dict:
    return settings(flags_of(train(run, gpus)), DISTRIBUTION_FLAGS) | {
        "tokens per update": run.preset.tokens_per_update
    }


def average(run: TranslationRun) -> list[str]:
    return [
        *("fwp", "average", "--checkpoint-dir", f"{run.path}/checkpoints"),
        *("--last", str(run.preset.average), "--output", str(run.checkpoint)),
    ]


def decode(tool: str, run: Run, checkpoint: Path, flags: dict, on_gpu: bool, fp16: bool = False) -> list[str]:
    """Returns a command of fairseq's that translates with the pieces of Multi30k or of another prepared corpus."""
    pieces = {"--bpe": "sentencepiece", "--sentencepiece-model": run.data / corpus.SENTENCEPIECE}
    flags = {"--path": checkpoint, **pieces, **flags, **device(on_gpu, fp16)}
    return [tool, f"{run.data}/bin", *USER_DIR, *words_of(flags)]


def generate(run: TranslationRun, gpus: Gpus) -> list[str]:
    flags = _direction(run.preset) | {"--gen-subset": run.preset.test} | run.preset.decoding
    flags |= {"--num-workers": 0, "--log-format": "none", "--results-path": run.generated.parent}
    return decode("fairseq-generate", run, run.checkpoint, flags, bool(gpus), run.preset.fp16)


def bleu(run: TranslationRun) -> list[str]:
    """Builds the command that scores the detokenised translations against the raw references."""
    preset, command = run.preset, ["fwp", "bleu", "--hypotheses", str(run.generated)]
    command += ["--references", str(run.reference)]
    return [*command, "--compound-split"] if preset.compound_split else command


def all_commands(run: TranslationRun, gpus: Gpus) -> list[list[str]]:
    merged = [average(run)] if run.preset.average is not None else []
    return [train(run, gpus), *merged, generate(run, gpus), bleu(run)]
