"""The fast-weight operators: update rules, decoding with them step by step, and the recurrence of the Delta RNN."""

from .call import RULES, STRENGTHS, FastWeights
from .decoding import Cache, Decoding
from .fast_weights import delta_rule, gated_delta_rule, gated_rule, sum_rule
from .recurrence import recur

__all__ = [
    "RULES",
    "STRENGTHS",
    "Cache",
    "Decoding",
    "FastWeights",
    "delta_rule",
    "gated_delta_rule",
    "gated_rule",
    "recur",
    "sum_rule",
]
