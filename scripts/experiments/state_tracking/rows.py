"""The models that learn the parity of bits: the options of fwp_fairseq.layers.FastWeightDecoder that make each."""

import itertools
from dataclasses import dataclass

# In the order of the tables.
NETS = {
    "sum": {"feature_map": "elu"},
    "delta": {"feature_map": "elu", "update_rule": "delta"},
    "fwp1991": {"feature_map": "identity", "update_rule": "sum", "fast_net": "fwp1991"},
    "mlp": {"feature_map": "elu", "update_rule": "delta", "fast_net": "mlp"},
    "delta-delta": {"feature_map": "elu", "update_rule": "delta", "fast_net": "delta"},
    "rnn-elu": {"feature_map": "elu", "update_rule": "delta", "fast_net": "rnn"},
    "lstm": {"feature_map": "elu", "update_rule": "delta", "fast_net": "lstm"},
    "recurrent-elu": {"feature_map": "elu", "update_rule": "delta", "recurrent": "tanh"},
    "rnn-recurrent-elu": {"feature_map": "elu", "update_rule": "delta", "fast_net": "rnn", "recurrent": "tanh"},
}
_RANGE = ("update_rule", "feature_map", "normalizer", "beta_range")
RANGES = {
    "-".join(options): dict(zip(_RANGE, options, strict=True))
    for options in (
        ("delta", "elu", "sum", "0-2"),
        *itertools.product(("delta", "gated_delta"), ("elu", "dpfp"), ("l2",), ("0-1", "0-2")),
    )
}
MODELS = NETS | RANGES
TITLES = {
    "sum": "linear attention",
    "delta": "delta rule",
    "fwp1991": "net of 1991",
    "mlp": "Delta MLP",
    "delta-delta": "Delta-Delta Net",
    "rnn-elu": "Delta RNN",
    "lstm": "Delta LSTM",
    "recurrent-elu": "Recurrent Delta Net",
    "rnn-recurrent-elu": "Delta RNN with feedback",
}
EVALUATE_EVERY, SOLVED = 50, 0.999
MOST_STEPS = 1000


@dataclass(frozen=True)
class Row:
    """One of MODELS."""

    name: str
