"""The gated rule's CUDA kernels against the reference in float64, with gradients: on the shim, and on a GPU if any.

What it shares with the other rules, the types, maps and layouts of inputs, is tested there.
"""

import pytest
import torch
from torch import Tensor

from tests.cuda import kernels
from tests.cuda.test_kernels import DEVICES, DPFP, LIMITS, NORMALIZERS, compare, make, same_in_both_orders
from tests.cuda.test_segments import mask
from tests.pairs import covering

pytestmark = pytest.mark.slow

LENGTHS = [13, 32, 50, 71, 130, 200]  # each block of tokens; several segments
FEATURE_MAPS = [DPFP, ("favor", {"m": 20}), ("elu", {}), None]


def hostile(beta: Tensor) -> None:
    """Nothing written; all else forgotten, exactly and almost; 1 - beta that is 1 in float32; a sign that changes.

    What is forgotten lies well before the end: with one key left, the gradient of q is a difference of equal numbers.
    """
    length = beta.shape[1]
    for start, step, value in ((0, 5, 0.0), (4, 29, 1.0), (20, 37, 1 - 1e-6), (3, 7, 1e-9), (25, 41, 1.5)):
        beta[:, start:length:step] = value


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "length, dtype, normalizer, state, causal, feature_map, masked, extreme",
    covering(
        LENGTHS, LIMITS, NORMALIZERS, ["none", "out", "in and out"], [True, False], FEATURE_MAPS, [False, True],
        [False, True],
    ),
    ids=str,
)  # fmt: skip
def test_values_and_gradients(length, dtype, normalizer, state, causal, feature_map, masked, extreme, device):
    """Every length with every type and so on; pads hold NaN, and W and z have gradients on both ends."""
    features, output = normalizer
    x, phi = make("gated", length, length, dtype=dtype, H=1, feature_map=feature_map, state=state == "in and out")
    if extreme:
        hostile(x["beta"])
    pads = mask(2, length)[:1] if masked else None
    if masked:
        for name in ("k", "v", "beta"):
            x[name].masked_fill_(pads.view(1, length, *[1] * (x[name].dim() - 2)), float("nan"))
    compare(
        device, "gated", x, phi, causal=causal, normalize_features=features, normalize_output=output,
        key_padding_mask=pads, return_state=state != "none", looser=2,
    )  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("T, S, dtype", [(20, 9, torch.float16), (7, 60, torch.float32), (70, 140, torch.bfloat16)])
def test_cross_attention(T, S, dtype, device):
    for state in (False, True):
        x, phi = make("gated", T, S, dtype=dtype, H=1, state=state)
        compare(device, "gated", x, phi, causal=False, normalize_output=state, return_state=state, looser=2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length, limit, dtype", [(80, kernels.SHARED_MEMORY, torch.float16), (140, 0, torch.float32)])
def test_states_in_many_columns(length, limit, dtype, device):
    """Blocks that share a head, with odd columns; and where shared memory has no room, states in memory."""
    x, phi = make("gated", length, length, dtype=dtype, H=1, d_value=67, state=True)
    compare(device, "gated", x, phi, normalize_output=True, return_state=True, limit=limit, looser=2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_order_of_threads_does_not_matter(dtype):
    for length, state, causal, feature_map in (
        (40, False, True, DPFP),
        (140, True, True, DPFP),
        (70, True, False, FEATURE_MAPS[1]),
    ):
        x, phi = make("gated", length, length, dtype=dtype, H=1, feature_map=feature_map, state=state)
        same_in_both_orders("gated", x, phi, causal=causal, key_padding_mask=None, return_state=state)
