"""Records of runs, JSON objects, as they are read from .jsonl files and from the folders of runs."""

import json
import os
from pathlib import Path


def read(*folders: str | os.PathLike) -> list[dict]:
    """All records of the folders, oldest first (by ``environment.date``, then by position): the lines of their .jsonl
    files, and the files record.json of runs at any depth. A .jsonl file may stand for its folder.

    Raises FileNotFoundError for one that is missing and ValueError naming file and line for a line that is no record.
    """
    records = []
    for folder in map(Path, folders):
        if folder.is_file():
            records += read_file(folder)
            continue
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder or file of records")
        for path in sorted(folder.glob("*.jsonl")):
            records += read_file(path)
        records += [_record(path.read_text(), str(path)) for path in sorted(folder.rglob("record.json"))]
    return sorted(records, key=lambda record: (record.get("environment") or {}).get("date", ""))


def read_file(path: str | os.PathLike) -> list[dict]:
    """The records of one .jsonl file, by position. Raises OSError, or ValueError as :func:`read` does."""
    lines = enumerate(Path(path).read_text().split("\n"), 1)
    return [_record(line, f"{path}:{number}") for number, line in lines if line.strip()]


def _record(text: str, where: str) -> dict:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: expected an object, found {type(record).__name__}")
    return record
