"""The corpora that prepare.py makes: their archives, and how texts become tokens, pieces and sets."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import archives
from .archives import Archive
from .preprocessing import Style


@dataclass(frozen=True)
class Corpus:
    """What is downloaded, and what is made of it.

    - `preset`: its name among the presets; `cost`: of preparation and training; `claim`: settings that must not change.
    - `joined`: for a text that consists of several texts of an archive, their names.
    - `lines`: the published number of lines of such a text.
    - `training`, `others`: how the training texts and the other texts become tokens.
    - `tokens`: for each file of tokens, its texts. The first one is the training text.
    - `split`: None, or the longest side in tokens and the number n: the training text is cleaned, and each n-th pair
      becomes the set "valid", the others the set "train".
    - `longest_in_pieces`: the longest side of a training pair in pieces; None if pairs are not cleaned then.
    - `vocabulary`: the number of joint pieces.
    - `learn_every`: pieces are learnt on one of so many lines.
    - `coverage`: the share of the training text's characters that pieces cover. Rarer characters become <unk>.
    - `sets`: the sets train, valid and test of fairseq-preprocess by the names of their files.
    """

    preset: str
    source: str
    target: str
    cost: str
    claim: dict
    archives: tuple[Archive, ...]
    training: Style
    others: Style
    tokens: dict[str, tuple[str, ...]]
    vocabulary: int
    sets: dict[str, str]
    joined: dict[str, tuple[str, ...]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    split: tuple[int, int] | None = None
    longest_in_pieces: int | None = None
    learn_every: int = 1
    coverage: float = 1.0
    joined_dictionary: bool = True

    @property
    def texts(self) -> list[str]:
        """The texts that the archives and `joined` give."""
        return [*(text for archive in self.archives for text in archive.members), *self.joined]


# Extrapolated from 10,000 pairs on one core, which was tokenised at 9,700 lines/s and split into pieces at 18,700
# pairs/s. The sizes of the archives, the time for learning pieces and for binarising, and the memory are guesses: the
# whole preparation has not been run.
_WMT14_COST = """\
cost of wmt14 (extrapolated, see corpora.py)
  disk        7 GB: archives 1.8, text 1.2, tokens 1.2, pieces 1.7, binarised 0.6
  time        a download of 1.8 GB, then about 1.5 core-hours, half of which are shared by --workers N processes
  memory      about 8 GB while the BPE model is learnt
  training    afterwards, about 290 GPU-hours on V100s for each row (4 days on 3 of them: Schlag et al. 2021,
              Appendix E), and 10 GB of checkpoints
about 4,590,000 pairs, 32,000 joint pieces"""


def wmt14() -> Corpus:
    """Follows fairseq's examples/translation/prepare-wmt14en2de.sh; README.md has the differences."""
    training = (archives.EUROPARL, archives.COMMON_CRAWL, archives.NEWS_COMMENTARY)
    names = tuple(text for archive in training for text in archive.members)
    return Corpus(
        preset="wmt14",
        source="en",
        target="de",
        cost=_WMT14_COST,
        claim={"corpus": "wmt14"},
        archives=(*training, archives.DEV, archives.TEST),
        training=Style(normalise=True, split_hyphens=True),
        others=Style(plain_apostrophes=True, split_hyphens=True),
        tokens={"train": names, "newstest2013": ("newstest2013",), "newstest2014": ("newstest2014",)},
        sets={"train": "train", "valid": "newstest2013", "test": "newstest2014"},
        vocabulary=32000,
        longest_in_pieces=250,
        learn_every=2,  # this takes less memory, and frequencies differ from the whole by chance only
        coverage=0.9999,  # rarer characters are mostly Common Crawl's
    )


# Extrapolated from the speeds above. The sizes and the times for learning pieces and binarising are guesses.
_IWSLT14_COST = """\
cost of iwslt14 (extrapolated, see corpora.py)
  disk        0.3 GB: archive 0.02, text, tokens and pieces 0.05 to 0.1 each, binarised 0.03
  time        a download of about 20 MB, then a few minutes of one core
  training    afterwards, a few hours of one GPU for each row (not measured), and 1.5 GB of checkpoints
about 160,000 pairs, 10,000 joint pieces"""


def iwslt14() -> Corpus:
    """Follows fairseq's examples/translation/prepare-iwslt14.sh; README.md has the differences."""
    return Corpus(
        preset="iwslt14",
        source="de",
        target="en",
        cost=_IWSLT14_COST,
        claim={"corpus": "iwslt14"},
        archives=(archives.IWSLT14,),
        training=Style(lower=True),
        others=Style(plain_apostrophes=True, lower=True),
        tokens={"all": ("train",), "test": ("test",)},
        vocabulary=10000,
        sets={"train": "train", "valid": "valid", "test": "test"},
        joined={"test": archives.IWSLT14_TESTS},
        lines={"test": 6750},  # fairseq's docs/getting_started.rst
        split=(175, 23),
        joined_dictionary=False,
    )


COSTS = (_WMT14_COST, _IWSLT14_COST)
