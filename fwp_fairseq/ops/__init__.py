"""The fast-weight operators: update rules, decoding, recurrences of the fast nets, and softmax attention."""

from .call import GATES, RULES, FastWeights
from .decoding import Cache, Decoding
from .fast_weights import delta_rule, gated_delta_rule, gated_rule, sum_rule
from .recurrence import recur, recur_lstm
from .source import read_source
from .window import read_window

__all__ = [
    "GATES",
    "RULES",
    "Cache",
    "Decoding",
    "FastWeights",
    "delta_rule",
    "gated_delta_rule",
    "gated_rule",
    "read_source",
    "read_window",
    "recur",
    "recur_lstm",
    "sum_rule",
]
