"""The folders that a command makes."""

from pathlib import Path

from .errors import UsageError


def made(folder: Path, flag: str) -> Path:
    """Makes a folder if it is not there; ``flag``, which named it, is named in errors."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{flag} {folder}: there is a file, expected a folder") from None
    return folder
