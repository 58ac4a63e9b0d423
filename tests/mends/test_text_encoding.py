"""A text is cut between characters for several processes, and one that is not UTF-8 is named."""

from itertools import pairwise

import pytest
from fairseq import file_chunker_utils

import fwp_fairseq.mends  # noqa: F401

LINES = ["äöü€𝄞" * (1 + n % 7) for n in range(60)]


@pytest.mark.parametrize("processes", [1, 2, 7, 50])
def test_every_line_is_read_once(tmp_path, processes):
    path = tmp_path / "text"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    offsets = file_chunker_utils.find_offsets(str(path), processes)
    found = []
    for begin, end in pairwise(offsets):
        with file_chunker_utils.Chunker(str(path), begin, end) as lines:
            found += lines
    assert found == [f"{line}\n" for line in LINES]


@pytest.mark.parametrize("at", [4, 30, 59])
def test_a_bad_line_is_named_wherever_reading_begins(tmp_path, at):
    path = tmp_path / "text"
    lines = [line.encode() for line in LINES]
    lines[at] = b"Stra\xdfe"
    path.write_bytes(b"\n".join(lines))
    message = f"^{path}: expected UTF-8 text, actual byte 0xdf at position 4 of line {at + 1}$"
    for begin in range(0, 60, 7):  # also in the middle of characters
        with pytest.raises(ValueError, match=message), file_chunker_utils.Chunker(str(path), begin, 9999) as found:
            list(found)
    if at == 59:
        with pytest.raises(ValueError, match=message):
            file_chunker_utils.find_offsets(str(path), 5)
