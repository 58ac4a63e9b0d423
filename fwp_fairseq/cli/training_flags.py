"""Finds the flags of fairseq-train that build a model with given options."""

import argparse
from pathlib import Path

from ..kinds import hyphens
from . import archs
from .errors import CommandError, UsageError

# Settings of fwp train that belong to a choice of fairseq's, which the user may replace by one without them.
_OF_CHOICES = {"optimizer": "adam_betas", "criterion": "label_smoothing", "lr_scheduler": "warmup_updates"}


def unfitting(flags: list[str]) -> list[str]:
    """Lists those settings that the optimizer, criterion or scheduler among these flags does not have."""
    from fairseq import criterions, optim  # noqa: F401  (registers them)
    from fairseq.optim import lr_scheduler  # noqa: F401
    from fairseq.registry import REGISTRIES

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for choice in _OF_CHOICES:
        parser.add_argument(f"--{hyphens(choice)}")
    chosen = vars(parser.parse_known_args(flags)[0])
    lacking = []
    for choice, setting in _OF_CHOICES.items():
        theirs = argparse.ArgumentParser(add_help=False)
        if cls := REGISTRIES[choice]["registry"].get(chosen[choice]):
            cls.add_args(theirs)
            if all(action.dest != setting for action in theirs._actions):
                lacking.append(f"--{hyphens(setting)}")
    return lacking


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
