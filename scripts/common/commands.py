"""Builds, reads and prints commands that are kept as argument lists."""

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "fwp_fairseq"
USER_DIR = ["--user-dir", PLUGIN]
TRAIN_MODULE = "fairseq_cli.train"
# The languages of every experiment but for one preset of by_site.
DIRECTION = {"--source-lang": "en", "--target-lang": "de"}


def _python() -> str:
    """Returns the path of the running interpreter, relative to the repository root if it lies in there."""
    path = Path(sys.executable)
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


# The tools are run as modules, not as console scripts: conda, `pip install --user` and clusters put scripts into
# different folders, and a script on the PATH may belong to another environment.
PYTHON = _python()
TOOLS = {
    "fairseq-preprocess": [PYTHON, "-m", "fairseq_cli.preprocess"],
    "fairseq-train": [PYTHON, "-m", TRAIN_MODULE],
    "fairseq-generate": [PYTHON, "-m", "fairseq_cli.generate"],
    "fairseq-eval-lm": [PYTHON, "-m", "fairseq_cli.eval_lm"],
    "fairseq-interactive": [PYTHON, "-m", "fairseq_cli.interactive"],
    "fwp": [PYTHON, "-m", "fwp_fairseq"],
}


def as_run(command: list[str]) -> list[str]:
    """Replaces the tool's name at the head of the command by its call with the running interpreter.

    The result works in the repository root. Recipes store commands with the tool's name, so that a folder made in one
    environment can be continued in another.
    """
    return [*TOOLS.get(command[0], command[:1]), *command[1:]]


def printed(command: list[str]) -> str:
    """Formats the command, as it is run, for a shell; a long command has one flag per line."""
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


def binarising(data: Path, valid: str, tests: Iterable[str], workers: int = 1) -> list[str]:
    """Returns the command that binarises the pieces of an English-German corpus: those of "train" and of these sets."""
    return [
        *("fairseq-preprocess", *words_of(DIRECTION), "--joined-dictionary"),
        *("--trainpref", f"{data}/bpe/train", "--validpref", f"{data}/bpe/{valid}"),
        *("--testpref", ",".join(f"{data}/bpe/{test}" for test in tests)),
        *("--destdir", f"{data}/bin", "--workers", str(workers)),
    ]


def flags_of(command: list[str]) -> dict[str, str]:
    """Maps each flag to its last value; the words before the first flag have the key ''."""
    flags: dict[str, list[str]] = {"": []}
    key = ""
    for word in command:
        if word.startswith("--"):
            key, _, value = word.partition("=")
            flags[key] = [value] if value else []
        else:
            flags[key].append(word)
    return {key: " ".join(words) for key, words in flags.items()}


def device(gpus, fp16: bool = False) -> dict:
    """Returns the flags of fairseq's tools for these GPUs, of which there may be none; with fp16 they compute in it."""
    if not gpus:
        return {"--cpu": True}
    return {"--fp16": True} if fp16 else {}


def site_flags(sites: dict[str, str]) -> dict[str, str]:
    """Returns the flags for the kind of attention of each site."""
    return {f"--fwp-{site}": kind for site, kind in sites.items()}


def words_of(flags: dict) -> list[str]:
    """Returns the arguments for these flags; True gives the flag without a value, None leaves it out."""
    words = []
    for flag, value in flags.items():
        if value is not None:
            words += [flag] if value is True else [flag, str(value)]
    return words
