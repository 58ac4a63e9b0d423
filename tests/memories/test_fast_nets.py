"""Fast nets other than one matrix, and feedback: against loops over positions and heads, and refusals."""

import pytest
import torch

from fwp_fairseq.layers import FastWeightAttention
from fwp_fairseq.memories import MEMORIES
from fwp_fairseq.memories.fast_nets import FAST_NETS
from fwp_fairseq.memories.fast_nets.mlp import Mlp
from tests.memories import naive_fast_nets
from tests.tolerances import assert_close

EMBED, HEADS, BATCH, LENGTH = 8, 2, 2, 7
# (fast net, feedback, further options)
CASES = {
    "linear-tanh": ("linear", "tanh", {"feature_map": "elu"}),
    "linear-softmax": ("linear", "softmax", {"feature_map": "dpfp", "normalizer": "l2"}),
    "rnn": ("rnn", "none", {"feature_map": "elu"}),
    "rnn-tanh": ("rnn", "tanh", {"feature_map": "hedgehog", "output_norm": "rms"}),
    "lstm": ("lstm", "none", {"feature_map": "elu"}),
    "lstm-softmax": ("lstm", "softmax", {"feature_map": "relu", "normalizer": "l2"}),
    "mlp": ("mlp", "none", {"feature_map": "elu"}),
    "mlp-3": ("mlp", "none", {"feature_map": "hedgehog", "fast_net_depth": 3, "normalizer": "none"}),
    "mlp-2-tanh": ("mlp", "tanh", {"feature_map": "dpfp", "fast_net_depth": 2}),
    "delta": ("delta", "none", {"feature_map": "dpfp"}),
    "delta-tanh": ("delta", "tanh", {"feature_map": "hedgehog"}),
    "fwp1991": ("fwp1991", "none", {"feature_map": "identity", "update_rule": "sum"}),
    "fwp1991-tanh": ("fwp1991", "tanh", {"feature_map": "dpfp", "update_rule": "sum", "normalizer": "sum"}),
    "fwp1991-l2": ("fwp1991", "none", {"feature_map": "hedgehog", "update_rule": "sum", "normalizer": "l2"}),
}
PADS = {
    "none": None,
    "right": [[False] * LENGTH, [False] * 4 + [True] * 3],
    "left and within": [[True, True] + [False] * 5, [False, True, False, False, True, False, True]],
}


def build(case: str, **options) -> FastWeightAttention:
    """In float64; what starts alike or at nothing is random."""
    fast_net, recurrent, others = CASES[case]
    options = {"update_rule": "delta"} | others | options
    layer = FastWeightAttention("dpfp", EMBED, HEADS, fast_net=fast_net, recurrent=recurrent, **options).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if parameter.dim() == 1 or "norm" in name or "map" in name or "beta" in name:
                parameter.normal_()
            elif "slow" in name:
                parameter.mul_(2)
    return layer


def random(length=LENGTH):
    return torch.randn(BATCH, length, EMBED, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_loops_over_positions_and_heads(case):
    layer = build(case)
    for pads in PADS.values():
        pads = None if pads is None else torch.tensor(pads)
        x = random().requires_grad_()
        real = torch.ones(BATCH, LENGTH, dtype=torch.bool) if pads is None else ~pads
        expected, (out, _) = naive_fast_nets.attend(layer, x, pads), layer(x, key_padding_mask=pads)
        assert_close(out[real], expected[real], "model")
        assert out.isfinite().all()
        for backend in ("reference", "chunked"):
            other = build(case, backend=backend)
            other.load_state_dict(layer.state_dict())
            assert_close(other(x, key_padding_mask=pads)[0][real], out[real], "model")
        weight = torch.randn_like(out[real])
        leaves = [x, *layer.parameters()]
        wanted, found = (torch.autograd.grad((y[real] * weight).sum(), leaves) for y in (expected, out))
        for name, theirs, mine in zip(["x", *dict(layer.named_parameters())], wanted, found, strict=True):
            assert_close(mine, theirs, "model")
            assert theirs.any(), f"{name} has no effect"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"fast_net": "gru"}, "fast_net = 'gru', expected one of " + ", ".join(FAST_NETS)),
        ({"fast_net": "rnn", "causal": False}, "fast_net = 'rnn': this is an option of decoder .* expected linear"),
        ({"fast_net": "rnn", "update_rule": "sum"}, "update_rule = 'sum' contradicts fast_net = 'rnn': .* delta"),
        ({"fast_net": "fwp1991"}, "update_rule = 'delta' contradicts fast_net = 'fwp1991': .* expected sum"),
        ({"fast_net": "lstm", "normalizer": "both"}, "normalizer = 'both' contradicts fast_net = 'lstm': these"),
        ({"fast_net_depth": 2}, "fast_net_depth = 2: this is an option of the memory Mlp; expected none"),
        ({"fast_net": "mlp", "fast_net_depth": 0}, "fast_net_depth = 0, expected a whole number, 1 or more"),
    ],
    ids=str,
)  # fmt: skip
def test_refused(options, message):
    with pytest.raises(ValueError, match=message):
        FastWeightAttention("dpfp", EMBED, HEADS, **{"update_rule": "delta"} | options)


def test_a_class_that_a_tool_made_of_a_memory_is_none_of_the_table():
    made = type("ParametrizedMlp", (Mlp,), {})  # as torch's parametrisations make one
    test_refused({"fast_net_depth": 2}, "fast_net_depth = 2: this is an option of the memory Mlp; expected none")
    assert made not in MEMORIES
