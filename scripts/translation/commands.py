"""Builds the commands of one run as argument lists. Paths are relative to the repository root where possible."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from scripts.common.commands import PYTHON, TRAIN_MODULE, USER_DIR, flags_of, printed, words_of
from scripts.common.folder import RecipeError
from scripts.common.runner import run as runner
from scripts.common.runner.gpus import visible
from scripts.data import corpus as multi30k

from .preset import Preset

# Flags that say how a training is distributed over processes. The result is the same up to rounding.
DISTRIBUTION_FLAGS = (
    "--max-tokens",
    "--update-freq",
    "--distributed-world-size",
    "--distributed-port",
    "--cpu",
    "--num-workers",
)


@dataclass(frozen=True)
class Devices:
    """The GPUs of one run (none for the CPU), and the launcher of its training if it uses several machines."""

    gpus: tuple[int, ...] = ()
    world_size: int | None = None
    launcher: tuple[str, ...] = ()

    @property
    def world(self) -> int:
        return self.world_size or max(1, len(self.gpus))

    @property
    def variables(self) -> dict[str, str]:
        # A launcher assigns the GPUs of its machines itself.
        return {} if self.launcher else visible(self.gpus)

    @property
    def train_flags(self) -> dict:
        if not self.gpus and not self.launcher:
            return {"--cpu": True}
        # With SLURM, fairseq's processes connect at this port.
        port = {"--distributed-port": 29500} if self.launcher and Path(self.launcher[0]).name == "srun" else {}
        return {"--distributed-world-size": self.world, **port}


class Run(runner.Run):
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


def update_freq(preset: Preset, max_tokens: int, world: int) -> int:
    """Returns how many batches to accumulate, so that an update sees `tokens_per_update` with any number of GPUs."""
    batches, rest = divmod(preset.tokens_per_update, max_tokens * world)
    if rest or not batches:
        whole = preset.tokens_per_update // max_tokens
        possible = ", ".join(str(n) for n in range(1, whole + 1) if preset.tokens_per_update % (max_tokens * n) == 0)
        raise RecipeError(
            f"{world} GPUs of --max-tokens {max_tokens} cannot share {preset.tokens_per_update:,} tokens an update "
            f"evenly; expected a number of GPUs among {possible or 'none with this --max-tokens'}"
        )
    return batches


def _direction(preset: Preset) -> dict:
    return {"--source-lang": preset.source, "--target-lang": preset.target}


def _trainer(launcher: tuple[str, ...]) -> list[str]:
    if any(Path(word).name in ("torchrun", "torch.distributed.run") for word in launcher):
        return ["-m", TRAIN_MODULE]  # torchrun starts Python itself
    # The path is absolute because a launcher may start Python in another folder.
    return [os.path.abspath(PYTHON), "-m", TRAIN_MODULE] if launcher else ["fairseq-train"]


def train(run: Run, devices: Devices) -> list[str]:
    preset = run.preset
    flags = preset.model | run.row.flags | preset.training
    if preset.precision != "fp32" and (devices.gpus or devices.launcher):
        flags[f"--{preset.precision}"] = True
    freq = update_freq(preset, int(run.given.get("--max-tokens", flags["--max-tokens"])), devices.world)
    flags |= {"--update-freq": freq, "--seed": run.seed, "--save-dir": f"{run.path}/checkpoints"}
    flags |= {"--num-workers": 2 if devices.gpus else 0, "--log-format": "json", **devices.train_flags}
    return [
        *devices.launcher,
        *_trainer(devices.launcher),
        *(f"{run.data}/bin", *USER_DIR, "--task", "translation"),
        *words_of(_direction(preset)),
        *run.train_words(flags),
    ]


def train_flags(run: Run, devices: Devices) -> dict[str, str]:
    """Returns the flags of fairseq-train, without those of the launcher, which may have the same names."""
    return flags_of(train(run, devices)[len(devices.launcher) :])


def configuration(run: Run, devices: Devices) -> dict:
    """Returns the settings that must not change when a training is continued."""
    settings = runner.settings(train_flags(run, devices), DISTRIBUTION_FLAGS)
    return settings | {"tokens per update": run.preset.tokens_per_update}


def average(run: Run) -> list[str]:
    return [
        *("fwp", "average", "--checkpoint-dir", f"{run.path}/checkpoints"),
        *("--last", str(run.preset.average), "--output", str(run.checkpoint)),
    ]


def decode(tool: str, data: Path, checkpoint: Path, flags: dict, on_gpu: bool) -> list[str]:
    """A command of fairseq's that translates with the pieces of the Multi30k or another prepared corpus."""
    pieces = {"--bpe": "sentencepiece", "--sentencepiece-model": data / multi30k.SENTENCEPIECE}
    device = {} if on_gpu else {"--cpu": True}
    return [tool, f"{data}/bin", *USER_DIR, *words_of({"--path": checkpoint, **pieces, **flags, **device})]


def generate(run: Run, devices: Devices) -> list[str]:
    flags = _direction(run.preset) | {"--gen-subset": run.preset.test} | run.preset.decoding
    flags |= {"--num-workers": 0, "--log-format": "none", "--results-path": run.generated.parent}
    if devices.gpus and run.preset.precision == "fp16":
        flags["--fp16"] = True
    return decode("fairseq-generate", run.data, run.checkpoint, flags, bool(devices.gpus))


def interactive(run: Run, checkpoint: Path, on_gpu: bool) -> str:
    """The shell line that translates a sentence of the user's own."""
    flags = _direction(run.preset) | {"--beam": run.preset.decoding["--beam"]}
    command = decode("fairseq-interactive", run.data, checkpoint, flags, on_gpu)
    return f"echo 'Two dogs are playing in the snow.' | {printed(command)}"


def bleu(run: Run) -> list[str]:
    """BLEU of the detokenised translations against the raw references."""
    preset, command = run.preset, ["fwp", "bleu", "--hypotheses", str(run.generated)]
    command += ["--references", str(run.reference), *(["--lowercase"] if preset.lower_case else [])]
    return [*command, "--compound-split", preset.target] if preset.compound_split else command


def tokenised_bleu(run: Run) -> list[str]:
    """BLEU of the tokens as they were decoded against those of the references, as multi-bleu.perl computes it."""
    return [
        *("fwp", "bleu", "--hypotheses", str(run.generated), "--lines", "H"),
        *("--references", str(run.data / run.preset.tokens)),
        *("--tokenize", "none", "--smooth-method", "none", "--force"),
    ]


def all_bleu(run: Run) -> list[list[str]]:
    return [bleu(run)] if run.preset.tokens is None else [bleu(run), tokenised_bleu(run)]


def all_commands(run: Run, devices: Devices) -> list[list[str]]:
    merged = [average(run)] if run.preset.average is not None else []
    return [train(run, devices), *merged, generate(run, devices), *all_bleu(run)]
