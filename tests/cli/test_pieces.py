"""The pieces that ``fwp train`` learns give the text back."""

import tempfile
import unicodedata

import pytest
import sentencepiece

from fwp_fairseq.cli.pieces import encoded, learn, learn_exact
from fwp_fairseq.cli.translator import joined

TEXTS = [
    "他说：“你好，世界！”（今天）",
    "ทำไมน้ำ…",
    "m² 5 ½ ™ №5 ﬁn",
    "über ệ 각",
    "naïve café",
    "e\u0301 \u2126 \u0958",
]


@pytest.fixture(scope="module")
def pieces():
    model = learn_exact(TEXTS * 3, 200, hard_vocab_limit=False)
    assert model == learn_exact(TEXTS * 3, 200, hard_vocab_limit=False), "no name of a file is in it"
    return sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("text", TEXTS)
def test_every_character_comes_back(pieces, text, form):
    """As Unicode's canonical composition writes it: combining marks are equivalent to composed letters."""
    assert pieces.decode(pieces.encode(unicodedata.normalize(form, text))) == unicodedata.normalize("NFC", text)


def test_pieces_of_a_language_that_the_model_does_not_know(pieces):
    """The model of the source language joins those of the target language, as far as it knows them in its own way."""
    theirs = sentencepiece.SentencePieceProcessor(
        model_proto=learn(["Ein Boot, zwei Boote"] * 9, 290, byte_fallback=True, hard_vocab_limit=False)
    )
    text = "Ein Boot, zwei 😀 Boote"
    found = theirs.encode(text, out_type=str)
    assert "<0xF0>" in found and any(pieces.piece_to_id(piece) == pieces.unk_id() for piece in found)
    assert joined(found, theirs) == text
    plain = theirs.encode("Ein Boot, zwei Boote", out_type=str)
    assert joined(plain, pieces) == joined(plain, theirs) == "Ein Boot, zwei Boote"


def test_a_carriage_return_ends_no_line_whatever_the_pieces_keep():
    """As fairseq reads it; SentencePiece's rule `identity` has it in a piece."""
    kept = sentencepiece.SentencePieceProcessor(
        model_proto=learn(["a\rb c"] * 9, 12, normalization_rule_name="identity", hard_vocab_limit=False)
    )
    assert "\r" in "".join(kept.encode("a\rb", out_type=str))
    assert encoded(kept, "a\rb") == encoded(kept, "a b")


def test_a_temporary_folder_of_any_name(monkeypatch, tmp_path):
    (tmp_path / "é").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "é"))
    sentencepiece.SentencePieceProcessor(model_proto=learn_exact(TEXTS * 3, 200, hard_vocab_limit=False))


@pytest.mark.parametrize("space", ["\t", "\r", "\x0b", "\x85", "\u00a0", "\u2009", "\u2028", "\u3000", " \u00a0 "])
def test_no_piece_has_white_space(pieces, space):
    """fairseq would cut the piece there."""
    found = pieces.encode(f"über{space}café", out_type=str)
    assert pieces.decode(found) == "über café" and not any(any(map(str.isspace, piece)) for piece in found)
