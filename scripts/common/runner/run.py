"""The identity of one run of an experiment."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..commands import PLUGIN, flags_of, words_of
from ..errors import RecipeError
from .preset import Preset


def folder_name(row, seed: int) -> str:
    """Returns the name of the folder of a run. fairseq cuts paths at commas, which names of kinds of attention have."""
    return f"{row.name.replace(',', '+')}-seed{seed}"


@dataclass(frozen=True)
class Run:
    """One row of a preset with one seed, in the folder `path`; `more` are the user's flags of fairseq-train."""

    preset: Preset
    row: Any
    seed: int
    path: Path
    data: Path
    more: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def name(self) -> str:
        return f"{self.row.name}-seed{self.seed}"

    @property
    def user_flags(self) -> dict[str, str]:
        """The user's flags of fairseq-train."""
        return flags_of(list(self.more))

    def finished(self, output: Path, experiment: str) -> Path:
        """Returns a file that the finished run has. Raises RecipeError if it is missing."""
        if not output.is_file():
            made = f"--preset {self.preset.name} --out {self.path.parent} --rows {self.row.name} --seeds {self.seed}"
            raise RecipeError(f"{output}: no such file; python -m scripts.experiments {experiment} {made} makes it")
        return output

    def training(self, task: dict, flags: dict) -> list[str]:
        """Returns the command of the training; the user's flags replace ``flags`` of the same name."""
        every = {"--seed": self.seed, "--save-dir": f"{self.path}/checkpoints", "--log-format": "json"}
        own = {flag: value for flag, value in (flags | every).items() if flag not in self.user_flags}
        own = {"--user-dir": PLUGIN} | task | own
        return ["fairseq-train", f"{self.data}/bin", *words_of(own), *self.more]


def settings(flags: dict, distribution: Iterable[str]) -> dict:
    """Returns the settings that must not change when a training is continued.

    ``distribution`` names the flags that say how a training is distributed over processes, which may change: the
    result is the same up to rounding.
    """
    return {flag: value for flag, value in flags.items() if flag and flag not in distribution}
