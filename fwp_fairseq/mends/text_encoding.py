"""Names file and line of a text that is not UTF-8, leaves out a byte order mark, and writes UTF-8 in any locale.

Symptom: fairseq-preprocess ends with "negative seek position"; under LC_ALL=C every command with UnicodeEncodeError.
Cause: fairseq steps back without end from a byte that begins no character, and prints in the locale's encoding.
Test: tests/mends/test_text_encoding.py::test_a_bad_line_is_named_wherever_reading_begins
"""

import io
import logging
import sys

from fairseq import file_chunker_utils

logger = logging.getLogger(__name__)

_LONGEST = 4  # bytes of one character
_MARK = "\ufeff"  # the byte order mark that editors put before UTF-8; it is no part of the text


def _explained(path: str) -> str:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                found = f"byte {line[error.start]:#04x} at position {error.start}"
                return f"{path}: expected UTF-8 text, actual {found} of line {number}"
    return f"{path}: expected UTF-8 text"


def _without_mark(line: str, source: str) -> str:
    if not line.startswith(_MARK):
        return line
    logger.warning(f"{source} begins with a byte order mark, which was left out")
    return line.removeprefix(_MARK)


def _leave_out_the_mark_of_input() -> None:
    """Leaves out the mark before the first line of fairseq-interactive, which would become an unknown word."""
    interactive = sys.modules.get("fairseq_cli.interactive")
    if interactive is None:
        return
    read = interactive.buffered_read

    def read_without_mark(source, buffer_size):
        for number, lines in enumerate(read(source, buffer_size)):
            if not number:
                lines[0] = _without_mark(lines[0], "standard input" if source == "-" else source)
            yield lines

    interactive.buffered_read = read_without_mark


def _name_undecodable_lines() -> None:
    """Ends fairseq-preprocess at a line that is not UTF-8 with an error that names it.

    A process that starts to read in the middle of a character steps back to its beginning. fairseq steps back without
    end, and then complains about a negative position.
    """
    chunker = file_chunker_utils.Chunker
    leave = chunker.__exit__

    def readline(file) -> str:
        position = file.tell()
        for back in range(min(_LONGEST, position + 1)):
            if back:
                file.seek(position - back)
            try:
                line = file.readline()
                return line if position else _without_mark(line, file.name)
            except UnicodeDecodeError as error:
                problem = error
        raise ValueError(_explained(file.name)) from problem

    def leave_or_explain(self, kind, error, traceback) -> None:
        leave(self, kind, error, traceback)
        if isinstance(error, UnicodeDecodeError):
            raise ValueError(_explained(self.path)) from error

    file_chunker_utils._safe_readline, chunker.__exit__ = readline, leave_or_explain


def _read_and_write_utf8() -> None:
    """Reads standard input and writes output as UTF-8, like the files of fairseq, where the locale says otherwise."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(encoding="utf-8", errors="strict" if stream is sys.stdin else stream.errors)


def mend() -> None:
    _name_undecodable_lines()
    _leave_out_the_mark_of_input()
    _read_and_write_utf8()
