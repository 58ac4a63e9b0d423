"""Fast nets in fairseq's module: the layer's results, decoding with hypotheses that change places, pads."""

import pytest
import torch

from fwp_fairseq.layers import FastWeightAttention as Layer
from fwp_fairseq.memories import FAST_NETS
from tests.modules.attention import EMBED, HEADS, build, ragged, random
from tests.tolerances import assert_close

CASES = [*((net, "none") for net in list(FAST_NETS)[1:]), ("linear", "tanh"), ("lstm", "softmax")]


@pytest.mark.parametrize("net, recurrent", CASES)
@torch.no_grad()
def test_decoding_is_what_the_layer_computes_at_once(net, recurrent):
    rule = "sum" if net == "fwp1991" else "delta"
    module = build("decoder", rule=rule, d_dot=24, fast_net=net, recurrent=recurrent)
    layer = Layer("dpfp", EMBED, HEADS, d_dot=24, update_rule=rule, fast_net=net, recurrent=recurrent).double()
    layer.load_state_dict(module.state_dict())
    x = random(9)
    for mask in (None, ragged(length=9), ragged(length=9, left=True)):
        whole, state = layer(x.transpose(0, 1), key_padding_mask=mask)
        whole = whole.transpose(0, 1)
        real = torch.ones(9, 3, dtype=torch.bool) if mask is None else ~mask.T
        out, weights = module(x, x, x, key_padding_mask=mask)
        assert_close(out, whole, "model")
        assert weights is None
        decoded = {}
        out, _ = module(x[:3], x[:3], x[:3], None if mask is None else mask[:, :3], decoded)
        assert_close(out[real[:3]], whole[:3][real[:3]], "model")
        rows = torch.tensor([2, 0, 0, 1, 2])
        module.reorder_incremental_state(decoded, rows)
        for t in range(3, 9):
            step = x[t : t + 1, rows]
            out, _ = module(step, step, step, None if mask is None else mask[rows, : t + 1], decoded)
            assert_close(out[0, real[t, rows]], whole[t, rows][real[t, rows]], "model")
        for mine, theirs, nothing in zip(
            module.load_state(decoded), state.select(rows), module.empty_state(5, x), strict=True
        ):
            assert (mine is None) == (theirs is None) == (nothing is None)
            if mine is not None:
                assert_close(mine, theirs, "model")
                assert mine.shape == nothing.shape
