"""The step in which fairseq-preprocess turns tokens into binary data."""

from __future__ import annotations

import shutil

from . import process
from .folder import Folder
from .steps import Steps


def binarise(steps: Steps, folder: Folder, command: list[str], inputs: list[str], dictionary: str) -> None:
    """Runs ``command``, which makes a new folder `bin` with this dictionary, unless that is done for these inputs."""

    def work() -> dict:
        shutil.rmtree(folder.path / "bin", ignore_errors=True)
        process.run(command, folder.path / "preprocess.log")
        return {}

    steps.run(folder, "preprocess", "binarise", inputs, [folder.path / "bin" / dictionary], work, command)
