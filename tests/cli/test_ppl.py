"""Perplexity by word from fairseq-eval-lm's log."""

import gzip
import json

import pytest


def log(tokens: str = "2,000", loss: str = "1.5000", options: str = "'post_process': None") -> str:
    lines = (
        f"{{'common_eval': {{{options}}}}}",
        f"Evaluated {tokens} tokens in 0.5s (4000.00 tokens/s)",
        f"Loss (base 2): {loss}, Perplexity: 2.83",
    )
    return "".join(f"2026-01-01 00:00:00 | INFO | fairseq_cli.eval_lm | {line}\n" for line in lines)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "log").write_text(log())
    (tmp_path / "text").write_text("three words here\n\n" * 100, encoding="utf-8")
    return tmp_path


def test_words_and_line_ends(fwp, folder):
    """3000 bits on 300 words and 200 line ends: 6 bits each."""
    found = fwp("ppl", folder / "log", "--text", folder / "text").out
    assert "500 words, 200 line ends among them: word perplexity 64.00" in found


def test_parts_and_compressed_text(fwp, folder):
    (folder / "second").write_text(log("1,000", "3.0"))
    with gzip.open(folder / "text.gz", "wb") as file:
        file.write((folder / "text").read_bytes())
    found = json.loads(fwp("ppl", folder / "log", folder / "second", "--text", folder / "text.gz", "--json").out)
    assert found["tokens"] == 3000 and found["bits_per_token"] == 2 and found["perplexity"] == 4
    assert found["word_perplexity"] == 2**12


def test_text_almost_without_spaces(fwp, folder):
    (folder / "text").write_text("字" * 1500 + "\n", encoding="utf-8")
    call = "ppl", folder / "log", "--text", folder / "text"
    assert "2 words, 1 line ends among them: word perplexity inf" in fwp(*call).out
    found = json.loads(fwp(*call, "--json").out, parse_constant=pytest.fail)  # Infinity is not JSON
    assert found["word_perplexity"] is None and found["words"] == 2


@pytest.mark.parametrize(
    "written, message",
    [
        ("nothing", "expected the log of one fairseq-eval-lm"),
        (log() + log(), "actual 2 and 2 of them"),
        (log(options="'post_process': 'subword_nmt'"), "counted words itself (--post-process subword_nmt)"),
        (
            "4,321 samples have invalid sizes and will be skipped, max_positions=64, first few sample ids=[9]\n"
            + log(),
            "skipped 4,321 samples of more than 64 tokens; expected the whole text, as with --tokens-per-sample 64",
        ),
        (log("499"), "499 tokens were evaluated, expected at least the 500 words"),
    ],
)
def test_refusals(refused, folder, written, message):
    (folder / "log").write_text(written)
    assert message in refused(1, "ppl", folder / "log", "--text", folder / "text")
    assert "No such file" in refused(1, "ppl", folder / "none", "--text", folder / "text")
    (folder / "log").write_text(log())
    (folder / "cut.gz").write_bytes(gzip.compress(b"words " * 100)[:-9])
    assert "cut.gz: expected gzip, as its name says" in refused(1, "ppl", folder / "log", "--text", folder / "cut.gz")
