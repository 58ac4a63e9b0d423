"""Finds the flags of fairseq-train that build a model with given options."""

import argparse
from pathlib import Path

from . import archs
from .errors import CommandError, UsageError


def _words(action: argparse.Action, value) -> list[str]:
    """Returns the command-line words that set the option to this value; empty if no flag can."""
    if action.nargs == 0:
        return [archs.flag_name(action)] if value == action.const else []
    return [] if value is None else [archs.flag_name(action), str(value)]


def _same(parsed, value, action: argparse.Action) -> bool:
    """Compares the parser's value with the checkpoint's, which may be the text of a list that the parser makes."""
    return parsed == (action.type(value) if isinstance(value, str) and action.type else value)


def _flags(arch: str, wanted: dict) -> tuple[list[str], dict]:
    """Finds the model flags that give the ``wanted`` options under an architecture.

    Also returns the options, with their values, that differ from the wanted ones despite these flags. One flag can
    change the default of another option (a preset's width depends on its map), hence the loop.
    """
    actions = {action.dest: action for action in archs.actions(arch)}
    words: list[str] = []
    open_to_flags = set(actions)
    while True:
        parsed = archs.options(arch, words)
        different = {
            name: parsed[name] for name, value in wanted.items() if not _same(parsed[name], value, actions[name])
        }
        new = {name: _words(actions[name], wanted[name]) for name in different if name in open_to_flags}
        if not any(new.values()):
            return words, different
        words += [word for flag in new.values() for word in flag]
        open_to_flags -= {name for name, flag in new.items() if flag}


def training_flags(options: dict, path: Path) -> list[str]:
    """Returns the model flags, ``--arch`` first, with which fairseq-train builds a model with exactly these options.

    The architecture is that of the options, unless it sets something that no flag can undo; then it is the model's own.
    ``path``, the checkpoint that the options are from, is named in errors (CommandError).
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    chosen = options["_name"]
    usual = archs.defaults(chosen)
    # An option that takes its value from another one (of the task, say) is not a flag of the model.
    wanted = {
        name: value
        for name, value in options.items()
        if not name.startswith("_") and not str(usual[name]).startswith("${")
    }
    for arch in dict.fromkeys((chosen, ARCH_MODEL_NAME_REGISTRY[chosen])):
        try:
            words, different = _flags(arch, wanted)
        except (UsageError, ValueError, TypeError, argparse.ArgumentTypeError) as error:
            raise CommandError(f"--input {path}: fairseq-train refuses options of the checkpoint: {error}") from None
        if not different:
            return ["--arch", arch, *words]
    name, value = next(iter(different.items()))
    raise CommandError(
        f"--input {path}: no flags of fairseq-train give the converted model: under --arch {arch} the option {name} is "
        f"{value}, expected {wanted[name]}"
    )
