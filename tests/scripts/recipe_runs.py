"""Makes fake tools for recipes, waits for them, and reads what a recipe left behind."""

import json
import textwrap
import time
from pathlib import Path


def made(folder, head, tools):
    """Writes a program for each tool; returns the command that runs it."""
    folder.mkdir()
    for name, body in tools.items():
        (folder / name).write_text(head + textwrap.dedent(body))
        (folder / name).chmod(0o755)
    return {name: [str(folder / name)] for name in tools}


def calls(root):
    """Returns the tools that ran since the last call."""
    file = root / "calls"
    lines = [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


def records_in(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def hanging(root):
    """Returns the process of the fake tool that hangs, once it does."""
    file, deadline = root / "hanging", time.monotonic() + 60
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return int(file.read_text())


def ends(pid):
    """Waits for the end of a process; says whether it came."""
    deadline = time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
