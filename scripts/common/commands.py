"""Commands as argument lists: how they are put together, read, run and printed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
USER_DIR = ["--user-dir", "fwp_fairseq"]
TRAIN_MODULE = "fairseq_cli.train"


def _python() -> str:
    """The running interpreter; from the repository root where it lies below that, so that lines are short."""
    path = Path(sys.executable)
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


# Modules rather than console scripts: conda, `pip install --user` and clusters put scripts into different folders, and
# a script on the PATH may be that of another environment.
PYTHON = _python()
TOOLS = {
    "fairseq-preprocess": [PYTHON, "-m", "fairseq_cli.preprocess"],
    "fairseq-train": [PYTHON, "-m", TRAIN_MODULE],
    "fairseq-generate": [PYTHON, "-m", "fairseq_cli.generate"],
    "fairseq-interactive": [PYTHON, "-m", "fairseq_cli.interactive"],
    "fwp": [PYTHON, "-m", "fwp_fairseq"],
}


def as_run(command: list[str]) -> list[str]:
    """The command with its tool, which stands first, by the running interpreter: in the repository root it works as is.

    Recipes keep commands with the tool's name, so that a folder made in one environment goes on in another.
    """
    return [*TOOLS.get(command[0], command[:1]), *command[1:]]


def printed(command: list[str]) -> str:
    """As it is run, for a shell; one flag a line when it is long."""
    command = as_run(command)
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


def words_of(flags: dict) -> list[str]:
    """The arguments for these flags; a flag whose value is True stands alone, one whose value is None is left out."""
    words = []
    for flag, value in flags.items():
        if value is not None:
            words += [flag] if value is True else [flag, str(value)]
    return words
