"""Runs the quickstart; scripts/quickstart.sh prepares the environment and starts this program."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.common import program
from scripts.reproduce.finetune_softmax_to_fast_weights import arguments as conversion
from scripts.reproduce.finetune_softmax_to_fast_weights import stages

from . import arguments, model


def quickstart(options) -> None:
    if options.attention == "converted":
        theirs = conversion.parse(arguments.for_conversion(options))
        theirs.command, theirs.out = options.command, options.out
        stages.run(theirs)
    else:
        model.train_and_score(options)


def main(argv: list[str]) -> int:
    options = arguments.parse(argv)
    options.command = ["scripts/quickstart.sh", *argv]
    options.out = program.from_root(options.out) or Path("runs/quickstart")
    return program.run(lambda: quickstart(options), "continues (the training from its last epoch)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
