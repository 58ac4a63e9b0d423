"""Learns SentencePiece BPE models."""

import io
import sys
import tempfile
from collections.abc import Iterable, Iterator
from unicodedata import decomposition, normalize

from ..files import named


def _composition() -> Iterator[tuple[str, str]]:
    """Yields what is replaced, and by what: white space by a space, and sequences that Unicode's NFC composes."""
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        composed = " " if character.isspace() else normalize("NFC", character)
        pair = decomposition(character)
        pair = "".join(chr(int(code, 16)) for code in pair.split()) if pair[:1] != "<" else ""
        for text in {character, normalize("NFD", character), pair} - {"", composed}:
            yield text, composed


def learn_exact(sentences: Iterable[str], vocabulary: int, **more) -> bytes:
    """Learns a model like :func:`learn`, whose pieces give back the text in NFC, with spaces for other white space.

    SentencePiece's own rules (NFKC) replace full-width punctuation, the Thai letter am, ellipses, fractions and others
    in sources and targets, so that a translation could not contain them.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        with named(rules.name):
            for pair in sorted(_composition()):
                rules.write("\t".join(" ".join(f"{ord(x):X}" for x in text) for text in pair) + "\n")
            rules.flush()
        model = learn(sentences, vocabulary, normalization_rule_tsv=rules.name, **more)
        name = rules.name.encode()  # the model contains it
        return model.replace(name, b"-" * len(name))


def encoded(pieces, line: str) -> str:
    """Returns the pieces of a line as fairseq reads them.

    A carriage return, at which fairseq would end the line, becomes a space, also for pieces that would keep it.
    """
    return " ".join(pieces.encode(line.replace("\r", " "), out_type=str))


def learn(sentences: Iterable[str], vocabulary: int, coverage: float = 1.0, threads: int = 1, **more) -> bytes:
    """Learns a model of ``vocabulary`` pieces.

    ``coverage`` is the share of the text's characters that pieces cover; ``more`` are options of SentencePiece.
    """
    import sentencepiece

    model = io.BytesIO()
    # Sentences and model are passed in memory, because otherwise the model would contain the names of its files.
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocabulary,
        character_coverage=coverage,
        num_threads=threads,
        minloglevel=2,
        **more,
    )
    return model.getvalue()
