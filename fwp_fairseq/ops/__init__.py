"""The fast-weight operators: three update rules, and decoding with them step by step."""

from .call import RULES, FastWeights
from .decoding import Cache, Decoding
from .fast_weights import delta_rule, gated_rule, sum_rule

__all__ = ["RULES", "Cache", "Decoding", "FastWeights", "delta_rule", "gated_rule", "sum_rule"]
