"""The fast-weight operators: four update rules, and decoding with them step by step."""

from .call import RULES, STRENGTHS, FastWeights
from .decoding import Cache, Decoding
from .fast_weights import delta_rule, gated_delta_rule, gated_rule, sum_rule

__all__ = [
    "RULES",
    "STRENGTHS",
    "Cache",
    "Decoding",
    "FastWeights",
    "delta_rule",
    "gated_delta_rule",
    "gated_rule",
    "sum_rule",
]
