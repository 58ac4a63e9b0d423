"""Computes the tokenised BLEU that papers on WMT14 English-German reported between 2017 and 2021.

It follows fairseq's scripts/compound_split_bleu.sh: text is tokenised by Moses, a hyphen between two words becomes a
token of its own, ##AT##-##AT##, and the score is that of multi-bleu, which has no smoothing. It is not comparable with
sacreBLEU's score: splitting compounds adds n-grams that are easy to get right.
"""

import re

import sacremoses
from sacrebleu.metrics import BLEU
from sacrebleu.metrics.bleu import BLEUScore
from sacrebleu.tokenizers.tokenizer_base import BaseTokenizer

NAME = "BLEU-compound-split"
_HYPHEN = re.compile(r"(\S)-(\S)")


class CompoundSplit(BaseTokenizer):
    """Tokenises with Moses and splits at hyphens; as in fairseq's script, a-b-c is split once if b is one letter."""

    def __init__(self):
        self._moses = sacremoses.MosesTokenizer("de")

    def signature(self) -> str:
        return f"sacremoses-{sacremoses.__version__}-de+compound-split"

    def __call__(self, line: str) -> str:
        return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", self._moses.tokenize(line, return_str=True))


class CompoundSplitBLEU(BLEU):
    """sacreBLEU's BLEU on those tokens."""

    def __init__(self):
        super().__init__(tokenize="none", force=True, smooth_method="none")
        self.tokenizer = CompoundSplit()
        self.tokenizer_signature = self.tokenizer.signature()

    def _compute_score_from_stats(self, stats: list[int]) -> BLEUScore:
        score = super()._compute_score_from_stats(stats)
        score.name = NAME
        return score
