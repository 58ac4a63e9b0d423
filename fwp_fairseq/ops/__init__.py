"""The shared operator: three update rules over the same fast weights."""

from .fast_weights import delta_rule, gated_rule, sum_rule
from .problem import RULES, FastWeights

__all__ = ["RULES", "FastWeights", "delta_rule", "gated_rule", "sum_rule"]
