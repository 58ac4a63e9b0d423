"""Tests the BPE model of a corpus and the text that it splits into pieces."""

import pytest

from scripts.data import corpus, multi30k


@pytest.fixture
def made_up(monkeypatch):
    """Replaces Multi30k by a small corpus that has a line separator inside a sentence."""
    nouns = ("dog", "cat", "horse", "bird", "tree")

    def provide(destination, say):
        destination.mkdir(parents=True, exist_ok=True)
        for split in multi30k.SPLITS:
            for language in multi30k.LANGUAGES:
                lines = [f"The {noun} sees\u2028{number} {language}." for noun in nouns for number in range(30)]
                (destination / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")

    monkeypatch.setattr(multi30k, "provide", provide)
    monkeypatch.setattr(corpus, "VOCABULARY", 60)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_made_twice_in_different_places_it_is_byte_identical(made_up, tmp_path):
    corpus.make(tmp_path / "a")
    corpus.make(tmp_path / "another" / "place")
    first = contents(tmp_path / "a")
    assert first == contents(tmp_path / "another" / "place")
    assert {str(path.relative_to(tmp_path / "a")) for path in corpus.outputs(tmp_path / "a")} == set(first)


def test_pieces_are_lines_of_the_text(made_up, tmp_path):
    import sentencepiece

    corpus.make(tmp_path)
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    assert model.get_piece_size() == 60
    raw = (tmp_path / "raw/train.en").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    pieces = (tmp_path / "bpe/train.en").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert len(pieces) == len(raw) == 150
    assert [model.decode(line.split(" ")) for line in pieces] == [line.replace("\u2028", " ") for line in raw]
