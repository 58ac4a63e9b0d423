"""Builds the commands of one run as argument lists. Paths are relative to the repository root where possible."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from scripts.common.commands import PYTHON, TRAIN_MODULE, USER_DIR, flags_of, words_of
from scripts.common.folder import RecipeError
from scripts.common.sweep import run as sweep
from scripts.common.sweep.gpus import visible
from scripts.data import corpus as multi30k

from .presets import Preset

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


@dataclass(frozen=True)
class Run(sweep.Run):
    """One row of a preset with one seed; `choices` has the values of `Preset.choices`."""

    choices: dict

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoints" / ("checkpoint_best.pt" if self.preset.average is None else "average.pt")

    @property
    def generated(self) -> Path:
        return self.path / "generate" / f"generate-{self.preset.test}.txt"

    @property
    def reference(self) -> Path:
        names = {"wmt14": "newstest2014", "multi30k": "test_2016_flickr"}
        return self.data / "raw" / f"{'smoke' if self.preset.test == 'test1' else names[self.preset.corpus]}.de"


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


def _row_flags(run: Run) -> dict:
    if run.choices.get("sites") == "decoder" and run.row.feature_map != "softmax":
        return {**run.row.flags, "--fwp-encoder-feature-map": "softmax"}
    return run.row.flags


def _trainer(launcher: tuple[str, ...]) -> list[str]:
    if any(Path(word).name in ("torchrun", "torch.distributed.run") for word in launcher):
        return ["-m", TRAIN_MODULE]  # torchrun starts Python itself
    # The path is absolute because a launcher may start Python in another folder.
    return [os.path.abspath(PYTHON), "-m", TRAIN_MODULE] if launcher else ["fairseq-train"]


def train(run: Run, devices: Devices) -> list[str]:
    preset = run.preset
    given = flags_of(list(run.more))
    flags = preset.model | _row_flags(run) | preset.training
    if "lr" in run.choices:
        flags["--lr"] = run.choices["lr"]
    if run.choices.get("precision", "fp32") != "fp32" and (devices.gpus or devices.launcher):
        flags[f"--{run.choices['precision']}"] = True
    freq = update_freq(preset, int(given.get("--max-tokens", flags["--max-tokens"])), devices.world)
    flags |= {"--update-freq": freq, "--seed": run.seed, "--save-dir": f"{run.path}/checkpoints"}
    flags |= {"--num-workers": 2 if devices.gpus else 0, "--log-format": "json", **devices.train_flags}
    return [
        *devices.launcher,
        *_trainer(devices.launcher),
        *(f"{run.data}/bin", *USER_DIR, "--task", "translation", "--source-lang", "en", "--target-lang", "de"),
        *words_of({flag: value for flag, value in flags.items() if flag not in given}),
        *run.more,
    ]


def train_flags(run: Run, devices: Devices) -> dict[str, str]:
    """Returns the flags of fairseq-train, without those of the launcher, which may have the same names."""
    return flags_of(train(run, devices)[len(devices.launcher) :])


def configuration(run: Run, devices: Devices) -> dict:
    """Returns the settings that must not change when a training is continued."""
    settings = sweep.settings(train_flags(run, devices), DISTRIBUTION_FLAGS)
    return settings | {"tokens per update": run.preset.tokens_per_update}


def average(run: Run) -> list[str]:
    return [
        *("fwp", "average", "--checkpoint-dir", f"{run.path}/checkpoints"),
        *("--last", str(run.preset.average), "--output", str(run.checkpoint)),
    ]


def generate(run: Run, devices: Devices) -> list[str]:
    flags = {
        "--path": run.checkpoint,
        "--source-lang": "en",
        "--target-lang": "de",
        "--bpe": "sentencepiece",
        "--sentencepiece-model": run.data / multi30k.SENTENCEPIECE,
        "--gen-subset": run.preset.test,
        **run.preset.decoding,
        "--num-workers": 0,
        "--log-format": "none",
        "--results-path": run.generated.parent,
    }
    if not devices.gpus:
        flags["--cpu"] = True
    elif run.choices.get("precision") == "fp16":
        flags["--fp16"] = True
    return ["fairseq-generate", f"{run.data}/bin", *USER_DIR, *words_of(flags)]


def bleu(run: Run) -> list[str]:
    command = ["fwp", "bleu", "--hypotheses", str(run.generated), "--references", str(run.reference)]
    return [*command, "--compound-split", "de"] if run.preset.compound_split else command


def all_commands(run: Run, devices: Devices) -> list[list[str]]:
    merged = [average(run)] if run.preset.average is not None else []
    return [train(run, devices), *merged, generate(run, devices), bleu(run)]
