"""Reads the records of runs. A record is a JSON object: a line of a .jsonl file, or the file record.json of a run."""

import json
import os
from pathlib import Path


def read(*folders: str | os.PathLike) -> list[dict]:
    """Returns the records in the given folders and .jsonl files, oldest first.

    Records are sorted by ``environment.date``, and those of the same date by position. In a folder, the records are the
    lines of its .jsonl files and the files record.json at any depth.

    Raises FileNotFoundError for a folder or file that is missing, and ValueError for a line that is no record, naming
    file and line.
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
        records += [
            _record(path.read_text(encoding="utf-8"), str(path)) for path in sorted(folder.rglob("record.json"))
        ]
    return sorted(records, key=lambda record: (record.get("environment") or {}).get("date", ""))


def read_file(path: str | os.PathLike) -> list[dict]:
    """Returns the records of one .jsonl file, line by line. Raises OSError, or ValueError as :func:`read` does."""
    lines = enumerate(Path(path).read_text(encoding="utf-8").split("\n"), 1)
    return [_record(line, f"{path}:{number}") for number, line in lines if line.strip()]


def _record(text: str, where: str) -> dict:
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: expected an object, found {type(record).__name__}")
    return record
