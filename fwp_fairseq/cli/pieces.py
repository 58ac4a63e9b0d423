"""Learns SentencePiece BPE models."""

import io
from collections.abc import Iterable


def learn(sentences: Iterable[str], vocabulary: int, coverage: float = 1.0, threads: int = 1, **more) -> bytes:
    """Returns a model of so many pieces.

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
