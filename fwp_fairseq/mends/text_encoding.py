"""Names file and line of a text that is not UTF-8, leaves out a byte order mark, and writes UTF-8 in any locale.

If fairseq-preprocess starts to read in the middle of a character, it steps back to the beginning of the character; from
a byte that begins no character, it steps back endlessly. fairseq prints in the encoding of the locale.
"""

import io
import logging
import sys

from fairseq import file_chunker_utils

from ..text import decoded, without_mark
from . import around, program

logger = logging.getLogger(__name__)

_LONGEST = 4  # bytes of one character


def _explained(path: str) -> str:
    with open(path, "rb") as file:
        try:
            for number, line in enumerate(file, 1):
                decoded(line, path, number)
        except ValueError as error:
            return str(error)
    return f"{path}: expected UTF-8 text"


if interactive := program("interactive"):

    @around(interactive, "buffered_read", ours=True)
    def read_without_mark(read, source, buffer_size):
        """Leaves out the mark before the first line of fairseq-interactive, which would become an unknown word."""
        for number, lines in enumerate(read(source, buffer_size)):
            if not number:
                lines[0] = without_mark(lines[0], "standard input" if source == "-" else source, logger.warning)
            yield lines


@around(file_chunker_utils, "_safe_readline")
def readline(_, file) -> str:
    position = file.tell()
    for back in range(min(_LONGEST, position + 1)):
        if back:
            file.seek(position - back)
        try:
            line = file.readline()
            return line if position else without_mark(line, file.name, logger.warning)
        except UnicodeDecodeError as error:
            problem = error
    raise ValueError(_explained(file.name)) from problem


@around(file_chunker_utils.Chunker, "__exit__")
def leave_or_explain(leave, self, kind, error, traceback) -> None:
    leave(self, kind, error, traceback)
    if isinstance(error, UnicodeDecodeError):
        raise ValueError(_explained(self.path)) from error


# Like the files of fairseq, standard input and output are UTF-8, also where the locale says otherwise.
for _stream in (sys.stdin, sys.stdout, sys.stderr):
    if isinstance(_stream, io.TextIOWrapper) and _stream.encoding.lower().replace("-", "") != "utf8":
        _stream.reconfigure(encoding="utf-8", errors="strict" if _stream is sys.stdin else _stream.errors)
