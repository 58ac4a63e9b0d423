"""The commands in the blocks of code of the pages, which tests take from there to run them.

A block without a language has nothing but commands. tests/test_pages.py reads in the sources of the tests which of them
they take; the words that `block`, `command` and `everywhere` are given therefore stand there as they are.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "csrc/**/*.md", "scripts/**/*.md")
    for path in ROOT.glob(pattern)
)


def blocks(page: str) -> list[str]:
    """With $run replaced by what the page says it is."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if run := re.search(r'^run="(.*)"\n', text, re.M):
        text = text.replace(run[0], "").replace("$run", run[1])
    return [found for language, found in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if not language]


def commands(block: str) -> list[str]:
    """A line each, without comments."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [found for line in lines if (found := re.sub(r"(^|\s+)#.*", "", line))]


def _only(found: list[str], beginning: str) -> str:
    found = [text for text in found if text.startswith(beginning)]
    assert len(found) == 1, f"expected one that begins with {beginning!r}, found {found}"
    return found[0]


def block(page: str, beginning: str) -> str:
    """The only block of a page that begins so; a test that takes it runs all of its commands."""
    return _only(blocks(page), beginning)


def command(page: str, beginning: str) -> str:
    """The only command of a page that begins so."""
    return _only([line for block in blocks(page) for line in commands(block)], beginning)


def everywhere(beginning: str) -> list[str]:
    """The commands of all pages that begin so."""
    found = [line for page in PAGES for block in blocks(page) for line in commands(block)]
    return [line for line in dict.fromkeys(found) if line.startswith(beginning)]
