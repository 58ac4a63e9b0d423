"""Lines of a stream are read in blocks as they come."""

import os
import threading
import time

import pytest

from fwp_fairseq.cli.blocks import blocks
from fwp_fairseq.cli.errors import CommandError


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    with open(reader, "rb") as source, open(writer, "wb", buffering=0) as sink:
        yield source, sink


def _write(sink, *pieces):
    """Writes pieces in a thread of its own, and waits the seconds that stand among them."""

    def run():
        for piece in pieces:
            time.sleep(piece) if isinstance(piece, float) else sink.write(piece)
        sink.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_line_is_there_before_the_next_one_comes(pipe):
    source, sink = pipe
    stream = blocks(source, "text")
    for line in ("first", "", "ünd ein Zeichen in Teilen"):
        encoded = f"{line}\n".encode()
        sink.write(encoded[:1])
        threading.Timer(0.1, sink.write, [encoded[1:]]).start() if encoded[1:] else None
        assert next(stream) == [line]
    os.set_blocking(source.fileno(), False)
    sink.write(b"without end")
    sink.close()
    assert list(stream) == [["without end"]]


def test_lines_of_a_fast_stream_are_in_full_blocks_and_those_of_a_slow_one_wait_for_no_other(pipe):
    source, sink = pipe
    lines = [f"{number}" for number in range(4500)]
    thread = _write(sink, "\n".join(lines).encode())
    found = list(blocks(source, "text"))
    thread.join()
    assert [len(block) for block in found] == [2000, 2000, 500] and [line for block in found for line in block] == lines


def test_a_stream_that_trickles_fills_no_block(pipe):
    source, sink = pipe
    thread = _write(sink, *[part for number in range(40) for part in (f"{number}\n".encode(), 0.02)])
    found = list(blocks(source, "text"))
    thread.join()
    assert len(found) > 2 and [line for block in found for line in block] == [str(number) for number in range(40)]


def test_blocks_of_long_lines_have_few(pipe):
    source, sink = pipe
    thread = _write(sink, (b"x" * 2**19 + b"\r\n") * 5)
    found = list(blocks(source, "text"))
    thread.join()
    assert [len(block) for block in found] == [2, 2, 1] and {line for block in found for line in block} == {"x" * 2**19}


@pytest.mark.parametrize("text, lines", [(b"", []), (b"\n", [""]), (b"a\n\n", ["a", ""]), ("\ufeffa".encode(), ["a"])])
def test_ends_of_a_text(pipe, text, lines):
    source, sink = pipe
    sink.write(text)
    sink.close()
    assert [line for block in blocks(source, "text") for line in block] == lines


def test_a_line_that_is_not_utf8_is_named_after_the_lines_before_it(pipe):
    source, sink = pipe
    sink.write(b"a\nb\nc \xfc\nd\n")
    sink.close()
    stream = blocks(source, "text")
    assert next(stream) == ["a", "b"]
    with pytest.raises(CommandError, match=r"^text: expected UTF-8 text, actual byte 0xfc at position 2 of line 3$"):
        next(stream)
