"""Starts the recipe that converts a softmax checkpoint to fast weights and fine-tunes it; run.sh calls it."""

from __future__ import annotations

import sys

from scripts.common import program

from .arguments import HERE, OUT, parse
from .stages import run


def main(argv: list[str]) -> int:
    options = parse(argv)
    options.command = [str(HERE / "run.sh"), *argv]
    options.out = program.from_root(options.out) or OUT
    options.checkpoint = program.from_root(options.checkpoint)
    return program.run(lambda: run(options), "continues (a training from its last epoch)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
