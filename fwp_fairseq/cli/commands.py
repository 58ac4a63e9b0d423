"""The commands that fwp train runs, each printed before it runs."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from ..files import named
from ..text import printable
from .errors import CommandError
from .processes import die_with_parent, started
from .progress import Progress

_LONGEST_ERROR = 500  # characters


def say(text: str) -> None:
    """Prints a line at once, as a whole: several threads may do so at a time."""
    print(f"{text}\n", end="", flush=True)


def show(words: list[str]) -> None:
    say(f"\n$ {shlex.join(words)}")


def run(*words: object, **keywords) -> None:
    """Runs a command to its end; raises CommandError if it fails."""
    words = [str(word) for word in words]
    show(words)
    status = subprocess.run(words, preexec_fn=die_with_parent, **keywords).returncode
    if status:
        raise CommandError(f"{shlex.join(words[:4])} ... ended with status {status}")


def ending(log: Path) -> str:
    """Returns the log of a command that failed, and its last line, in which fairseq names the cause."""
    last = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
    last = printable(last)
    if len(last) > _LONGEST_ERROR:  # the cause is at its beginning, the advice at its end
        last = f"{last[: _LONGEST_ERROR // 2]} ... {last[-_LONGEST_ERROR // 2 :]}"
    return f"{log} ends with: {last}"


def logged(log: Path, *words: object) -> None:
    """Runs a command whose output goes into a file, which is named if it fails."""
    with open(log, "w", encoding="utf-8") as file:
        try:
            run(*words, stdout=file, stderr=file)
        except CommandError as error:
            raise CommandError(f"{error}; {ending(log)}") from None


def tool(name: str, *words: object) -> list[object]:
    """Returns the words that call one of fairseq's tools."""
    return [sys.executable, "-m", f"fairseq_cli.{name}", *words]


def fwp(*words: object) -> list[object]:
    """Returns the words that call a command of ``fwp``."""
    return [sys.executable, "-m", "fwp_fairseq", *words]


def called() -> str:
    """Returns the word by which a shell finds this ``fwp``: its name if the PATH leads to it, else as it was called."""
    program = Path(sys.argv[0])
    program = program if program.name == "fwp" else Path(sys.executable).with_name("fwp")
    if program.exists() and program.samefile(shutil.which("fwp") or "/"):
        return "fwp"
    return shlex.quote(str(program)) if program.exists() else f"{shlex.quote(sys.executable)} -m fwp_fairseq"


def follow(words: list[str], log, progress: Progress) -> int:
    """Runs the command, copies its output to the file ``log`` and says how far it is; returns its status."""
    with started(words) as process:
        for line in process.stdout:
            with named(log.name):
                log.write(line)
                log.flush()
            progress.line(line)
    return process.returncode
