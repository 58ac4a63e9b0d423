"""Builds the commands of one run as argument lists. Paths are relative to the repository root where possible."""

from pathlib import Path

from scripts.common.commands import USER_DIR, device, flags_of, words_of
from scripts.common.errors import RecipeError
from scripts.common.runner.gpus import Gpus
from scripts.common.runner.run import Run, settings

from .presets import Size

EVALUATED = ("valid", "test")
DISTRIBUTION_FLAGS = ("--batch-size", "--distributed-world-size", "--cpu", "--num-workers")


class LanguageModelRun(Run):
    """One row of a preset with one seed."""

    @property
    def size(self) -> Size:
        return self.preset.sizes[self.row.size]

    @property
    def length(self) -> int:
        """Tokens of a segment."""
        return min(self.row.length or self.size.length, self.size.length)

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoints/checkpoint_best.pt"

    def log(self, split: str) -> Path:
        return self.path / f"{split}.log"

    def text(self, split: str) -> Path:
        return self.data / f"raw/{split}.txt"

    @property
    def state_numbers(self) -> int:
        """The numbers that the model keeps of a text, counted as in Appendix F: W of all layers, or keys and values."""
        row, size = self.row, self.size
        kept = row.recorded["d_dot"] or 2 * ((row.mem_len or 0) + self.length)
        return size.layers * size.width * kept


def streams_of_a_process(size: Size, gpus: Gpus) -> int:
    """Returns the number of streams that each process reads, so that all together read `streams`."""
    world = max(1, len(gpus))
    if size.streams % world:
        possible = ", ".join(str(n) for n in range(1, size.streams + 1) if size.streams % n == 0)
        raise RecipeError(f"{world} GPUs cannot share {size.streams} streams evenly; expected one of {possible} GPUs")
    return size.streams // world


def _own_training(run: LanguageModelRun) -> dict:
    """Returns the flags of some rows only. Every update of every row reads the same number of tokens."""
    if run.row.mem_len is not None:
        several = run.size.length // run.length
        return run.preset.transformer_xl | ({"--update-freq": several} if several > 1 else {})
    return run.preset.carrying if run.row.state == "carried" else {}


def train(run: LanguageModelRun, gpus: Gpus = ()) -> list[str]:
    size = run.size
    flags = {
        "--tokens-per-sample": run.length,
        "--batch-size": streams_of_a_process(size, gpus),
        "--arch": run.row.family + size.variant,
        **size.model,
        **run.row.flags,
        **run.preset.training,
        "--max-update": size.updates,
        **_own_training(run),
        "--num-workers": 1 if gpus else 0,
        **(device(gpus) or {"--distributed-world-size": len(gpus)}),
    }
    return run.training({"--task": "fwp_language_modeling"}, flags)


def configuration(run: LanguageModelRun) -> dict:
    return settings(flags_of(train(run)), DISTRIBUTION_FLAGS) | {"streams": run.size.streams}


def evaluate(run: LanguageModelRun, split: str, gpus: Gpus = ()) -> list[str]:
    """Returns the command that evaluates a run on one part of the text.

    With carried state the whole text is one stream; otherwise a window of L tokens moves over it by one token.
    """
    length = int(run.user_flags.get("--tokens-per-sample", run.length))
    if run.row.state == "carried":
        how = {"--task": "fwp_language_modeling", "--tokens-per-sample": length, "--batch-size": 1}
    else:
        windows = {"--context-window": length - 1, "--batch-size": run.preset.window_batch}
        how = {"--task": "language_modeling", "--tokens-per-sample": length, **windows}
    flags = {
        **how,
        "--path": run.checkpoint,
        "--gen-subset": split,
        "--num-workers": 0,
        "--log-format": "none",
        **device(gpus),
    }
    return ["fairseq-eval-lm", f"{run.data}/bin", *USER_DIR, *words_of(flags)]


def perplexity(run: LanguageModelRun, split: str) -> list[str]:
    return ["fwp", "ppl", str(run.log(split)), "--text", str(run.text(split)), "--json"]


def all_commands(run: LanguageModelRun, gpus: Gpus) -> list[list[str]]:
    evaluations = [command for split in EVALUATED for command in (evaluate(run, split, gpus), perplexity(run, split))]
    return [train(run, gpus), *evaluations]
