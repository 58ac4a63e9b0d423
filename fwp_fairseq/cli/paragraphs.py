"""The paragraphs of a text, in windows that a model can translate."""

import re

_SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+")


def _sentences(text: str) -> list[str]:
    ends = [match.end() for match in _SENTENCE.finditer(text)]
    return [text[a:b].strip() for a, b in zip([0, *ends], [*ends, len(text)], strict=True) if text[a:b].strip()]


def windows(paragraph: str, words: int) -> list[str]:
    """Divides a paragraph at ends of sentences into windows of at most ``words`` words, or of one longer sentence."""
    found: list[list[str]] = []
    size = 0
    for sentence in _sentences(paragraph):
        length = len(sentence.split())
        if not found or size + length > words:
            found.append([])
            size = 0
        found[-1].append(sentence)
        size += length
    return [" ".join(sentences) for sentences in found]


def paragraphs(lines: list[str]) -> list[str]:
    """Joins the lines between empty ones; each empty line stays, as an empty paragraph."""
    found: list[str] = []
    behind_text = False
    for line in lines:
        if line.strip() and behind_text:
            found[-1] += f" {line.strip()}"
        else:
            found.append(line.strip())
        behind_text = bool(line.strip())
    return found
