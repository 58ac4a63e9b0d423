"""Prints the folder of this package, for fairseq-train --user-dir "$(fwp path)"."""

from pathlib import Path


def add_arguments(parser) -> None:
    pass


def run(args) -> int:
    print(Path(__file__).resolve().parents[1])
    return 0
