"""Prints the folder of this package, for fairseq-train --user-dir "$(fwp path)"."""

from .plugin import FOLDER


def run(args) -> int:
    print(FOLDER)
    return 0
