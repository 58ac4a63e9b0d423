"""The models that learn the parity of bits, by their kinds of attention."""

from scripts.common.row import Row

# In the order of the tables.
NETS = (
    "elu",
    "elu,update-rule=delta",
    "fwp1991,feature-map=identity",
    "delta-mlp",
    "delta-delta",
    "delta-rnn",
    "delta-lstm",
    "recurrent-delta",
    "delta-rnn,recurrent=tanh",
)
RANGES = (
    "elu,update-rule=delta,normalizer=sum,beta-range=0-2",
    *(
        f"{feature_map},update-rule={rule},normalizer=l2,beta-range={beta}"
        for rule in ("delta", "gated_delta")
        for feature_map in ("elu", "dpfp")
        for beta in ("0-1", "0-2")
    ),
)
ROWS = tuple(Row(kind, {}) for kind in NETS + RANGES)
EVALUATE_EVERY, SOLVED = 50, 0.999
MOST_STEPS = 1000


def layer_options(kind: str) -> tuple[str, dict[str, str]]:
    """Returns the name of a kind and the options in which a layer differs from it, as layers take them."""
    name, *changes = kind.split(",")
    return name, {option.replace("-", "_"): value for option, _, value in (text.partition("=") for text in changes)}
