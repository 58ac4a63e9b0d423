"""Commands as argument lists: how they are put together, read and printed."""

from __future__ import annotations

import shlex

BIN = ".venv/bin"
USER_DIR = ["--user-dir", "fwp_fairseq"]


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


def words_of(flags: dict) -> list[str]:
    """The arguments for these flags; a flag whose value is True stands alone, one whose value is None is left out."""
    words = []
    for flag, value in flags.items():
        if value is not None:
            words += [flag] if value is True else [flag, str(value)]
    return words
