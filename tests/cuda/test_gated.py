"""The CUDA kernels of rules that decay against the reference in float64, with gradients: on the shim, or a GPU if any.

What it shares with the other rules, the types, maps and layouts of inputs, is tested there.
"""

import pytest
import torch
from torch import Tensor

from fwp_fairseq.ops.call import CORRECTING, DECAYING, STRENGTHS
from tests.cuda import kernels
from tests.cuda.test_kernels import DEVICES, DPFP, LIMITS, NORMALIZERS, compare, make, same_in_both_orders
from tests.cuda.test_segments import mask
from tests.pairs import covering

pytestmark = pytest.mark.slow

RULES = DECAYING
LENGTHS = [13, 32, 50, 71, 130, 200]  # each block of tokens; several segments
FEATURE_MAPS = [DPFP, ("favor", {"m": 20}), ("elu", {}), None]


def hostile(x: dict[str, Tensor], divides: bool) -> None:
    """Nothing forgotten, or all else, exactly and almost; a share left that is 1 in float32; a sign that changes.

    What is forgotten lies well before the end: with one key left, the gradient of q is a difference of equal numbers.
    If ``divides``, keys divide what they read by what is left, which then is never almost nothing and keeps its sign.
    """
    forgotten = 1 - x["alpha"] if "alpha" in x else x["beta"]
    length = forgotten.shape[1]
    for start, step, value in ((0, 5, 0.0), (4, 29, 1.0), (20, 37, 1 - 1e-6), (3, 7, 1e-9), (25, 41, 1.5)):
        forgotten[:, start:length:step] = 0.5 if divides and value > 0.5 else value
    if "alpha" in x:
        x["alpha"] = 1 - forgotten


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "length, dtype, normalizer, state, causal, feature_map, masked, extreme",
    covering(
        LENGTHS, LIMITS, NORMALIZERS, ["none", "out", "in and out"], [True, False], FEATURE_MAPS, [False, True],
        [False, True],
    ),
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("rule", RULES)
def test_values_and_gradients(rule, length, dtype, normalizer, state, causal, feature_map, masked, extreme, device):
    """Every length with every type and so on; pads hold NaN, and W and z have gradients on both ends."""
    features, output = normalizer
    if rule == "gated_delta" and not (features or output):  # else it diverges
        features = True
    x, phi = make(rule, length, length, dtype=dtype, H=1, feature_map=feature_map, state=state == "in and out")
    if extreme:
        hostile(x, divides=rule in CORRECTING and output)
    pads = mask(2, length)[:1] if masked else None
    if masked:
        for name in ("k", "v", *STRENGTHS[rule]):
            x[name].masked_fill_(pads.view(1, length, *[1] * (x[name].dim() - 2)), float("nan"))
    compare(
        device, rule, x, phi, causal=causal, normalize_features=features, normalize_output=output,
        key_padding_mask=pads, return_state=state != "none", looser=2,
    )  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "length, dtype, normalizer, causal, masked",
    covering([64, 65, 80, 96, 127, 128, 129, 200], LIMITS, NORMALIZERS[:3], [True, False], [False, True]),
    ids=str,
)
def test_the_backward_of_the_gated_delta_rule_takes_segments_from_65_tokens_on(
    length, dtype, normalizer, causal, masked, device
):
    """There the forward is one segment, of half operands, up to 128 tokens."""
    features, output = normalizer
    options = dict(causal=causal, normalize_features=features, normalize_output=output)
    x, phi = make("gated_delta", length, length, dtype=dtype, H=1)
    call = kernels.make_call(**x, rule="gated_delta", feature_map=phi, **options)
    assert kernels.segmented(call, backward=True, limit=kernels.SHARED_MEMORY) == (length > 64)
    longest = 64 if dtype == torch.float32 else 128
    assert kernels.segmented(call, backward=False, limit=kernels.SHARED_MEMORY) == (length > longest)
    pads = mask(2, length)[:1] if masked else None
    compare(device, "gated_delta", x, phi, key_padding_mask=pads, looser=2, **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("T, S, dtype", [(20, 9, torch.float16), (7, 60, torch.float32), (70, 140, torch.bfloat16)])
def test_cross_attention(T, S, dtype, rule, device):
    for state in (False, True):
        x, phi = make(rule, T, S, dtype=dtype, H=1, state=state)
        compare(device, rule, x, phi, causal=False, normalize_output=state, return_state=state, looser=2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length, limit, dtype", [(80, kernels.SHARED_MEMORY, torch.float16), (140, 0, torch.float32)])
def test_states_in_many_columns(length, limit, dtype, rule, device):
    """Blocks that share a head, with odd columns; and where shared memory has no room, states in memory."""
    x, phi = make(rule, length, length, dtype=dtype, H=1, d_value=67, state=True)
    compare(device, rule, x, phi, normalize_output=True, return_state=True, limit=limit, looser=2)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_order_of_threads_does_not_matter(dtype, rule):
    for length, state, causal, feature_map in (
        (30, False, True, DPFP),
        (40, False, True, DPFP),
        (140, True, True, DPFP),
        (70, True, False, FEATURE_MAPS[1]),
    ):
        x, phi = make(rule, length, length, dtype=dtype, H=1, feature_map=feature_map, state=state)
        same_in_both_orders(rule, x, phi, causal=causal, key_padding_mask=None, return_state=state)
