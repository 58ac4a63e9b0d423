"""Short convolutions compute what their equation says."""

import numpy as np
import pytest
import torch

from fwp_fairseq.layers import FastWeightAttention
from fwp_fairseq.layers.short_convolution import ShortConvolution
from tests.tolerances import assert_close


def by_hand(x: np.ndarray, weight: np.ndarray, first: int) -> np.ndarray:
    """y_t = sum_i w_i x_{t + first + i}, coordinate by coordinate."""
    y = np.zeros_like(x)
    for t in range(len(x)):
        for i in range(weight.shape[1]):
            if 0 <= t + first + i < len(x):
                y[t] += weight[:, i] * x[t + first + i]
    return y


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize(
    "size, causal, first, taps", [(4, True, -3, 4), (1, True, 0, 1), (4, False, -1, 3), (5, False, -2, 5)]
)
@torch.no_grad()
def test_values(size, causal, first, taps, length):
    conv, x = ShortConvolution(6, size, causal).double(), torch.randn(2, length, 6, dtype=torch.float64)
    assert conv.weight.shape == (6, 1, taps)
    assert torch.equal(conv(x)[0], x)
    torch.nn.init.normal_(conv.weight)
    found, _ = conv(x)
    for row in range(2):
        expected = by_hand(x[row].numpy(), conv.weight[:, 0].numpy(), first)
        assert_close(found[row], torch.tensor(expected), "rounding")


@torch.no_grad()
def test_a_layer_convolves_queries_keys_and_values():
    """The layer with convolutions is the one without, whose projections are convolved by hand."""
    torch.manual_seed(1)
    layer = FastWeightAttention("delta", 12, 2, conv_size=4).double()
    plain = FastWeightAttention("delta", 12, 2).double()
    convs = {name: getattr(layer, f"{name}_conv") for name in "qkv"}
    for conv in convs.values():
        torch.nn.init.normal_(conv.weight)
    plain.load_state_dict({n: p for n, p in layer.state_dict().items() if "_conv" not in n})
    for name, conv in convs.items():

        def convolve(_, __, y, weight=conv.weight):
            return torch.stack([torch.tensor(by_hand(row.numpy(), weight[:, 0].numpy(), -3)) for row in y])

        plain.get_submodule(f"{name}_proj").register_forward_hook(convolve)
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    assert_close(layer(x)[0], plain(x)[0], "model")


def test_the_random_numbers_of_the_other_parameters_stay_the_same():
    torch.manual_seed(1)
    with_ones = FastWeightAttention("delta", 12, 2, conv_size=4)
    torch.manual_seed(1)
    for name, parameter in FastWeightAttention("delta", 12, 2).named_parameters():
        assert torch.equal(parameter, with_ones.get_parameter(name)), name


@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_what_pads_hold_reaches_no_neighbour(causal):
    layer = FastWeightAttention("delta", 12, 2, conv_size=4, causal=causal)
    for name in "qkv":
        torch.nn.init.normal_(getattr(layer, f"{name}_conv").weight)
    x, pads = torch.randn(2, 6, 12), torch.zeros(2, 6, dtype=torch.bool)
    pads[0, 4:] = pads[1, :2] = True
    expected, _ = layer(x, key_padding_mask=pads)
    found, _ = layer(x.masked_fill(pads[..., None], torch.nan), key_padding_mask=pads)
    assert torch.equal(found[~pads], expected[~pads])


@torch.no_grad()
def test_attention_that_is_not_causal_reads_a_state():
    """Each input is convolved by itself, so that what is written at once is read later as it is read at once."""
    layer, x = FastWeightAttention("delta", 12, 2, conv_size=3, causal=False), torch.randn(2, 6, 12)
    torch.nn.init.normal_(layer.q_conv.weight)
    out, state = layer(x)
    assert torch.equal(layer.read(x, state), out)


@torch.no_grad()
def test_a_text_may_be_cut_anywhere_and_padded_on_either_side():
    layer, x = FastWeightAttention("delta", 12, 2, conv_size=3).double(), torch.randn(1, 6, 12, dtype=torch.float64)
    for name in "qkv":
        torch.nn.init.normal_(getattr(layer, f"{name}_conv").weight)
    expected, end = layer(x)
    _, state = layer(x[:, :3])
    pads = torch.tensor([[True, False, True, False, False]])
    wide = x.new_full((1, 5, 12), torch.nan)
    wide[~pads] = x[0, 3:]
    out, state = layer(wide, state=state, key_padding_mask=pads)
    assert_close(out[~pads], expected[0, 3:], "model")
    assert all(mine is theirs is None or torch.allclose(mine, theirs) for mine, theirs in zip(state, end, strict=True))


def test_cross_attention_has_no_convolutions():
    with pytest.raises(ValueError, match="source_dim = 6 contradicts conv_size = 3, an option of self-attention"):
        FastWeightAttention("delta", 12, 2, conv_size=3, causal=False, source_dim=6)
    layer = FastWeightAttention("delta", 12, 2, conv_size=3, causal=False)
    with pytest.raises(ValueError, match="source contradicts conv_size = 3"):
        layer(torch.randn(1, 2, 12), torch.randn(1, 4, 12))


def test_a_state_is_loaded_as_the_only_class_of_its_name():
    classes = [known for known in torch.serialization.get_safe_globals() if isinstance(known, type)]
    names = [f"{cls.__module__}.{cls.__qualname__}" for cls in classes]
    assert [name for name in set(names) if names.count(name) > 1] == []
