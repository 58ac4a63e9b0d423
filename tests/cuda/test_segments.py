"""Calls of several segments, because they are long or a block of the CUDA kernels has little shared memory."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from fwp_fairseq.feature_maps import build_feature_map
from tests.cuda import kernels, shim
from tests.cuda.test_kernels import (
    CUDA_MAPS,
    DEVICES,
    DPFP,
    LIMITS,
    NORMALIZERS,
    by_shim,
    compare,
    make,
    same_in_both_orders,
)
from tests.pairs import covering

pytestmark = pytest.mark.slow

LENGTHS = [129, 130, 255, 256, 257, 300]
RULES = ["sum", "delta"]
CAUSAL = [True, False]
SLABS = (160, 70, None)  # features in slabs, which no other test here has
WIDTHS = [
    (64, 64, ("dpfp", {"nu": 4})),
    (32, 130, DPFP),  # columns of values in blocks, the last one narrow
    (8, 70, ("favor", {"m": 70})),
]
PRECISIONS = [(torch.bfloat16, False), (torch.float32, True)]  # and whether outputs are normalised


def mask(B: int, S: int) -> Tensor:
    """Pads on both sides of the first row and across its first border of segments, the second half of the last row."""
    pads = torch.zeros(B, S, dtype=torch.bool)
    pads[0, :2] = pads[0, 60:70] = pads[0, -3:] = True
    pads[-1, S // 2 :] = True
    return pads


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "length, rule, dtype, causal, output",
    [
        (length, rule, dtype, causal, output)
        for length, (rule, causal), dtype, output in covering(
            LENGTHS, itertools.product(RULES, CAUSAL), LIMITS, [False, True]
        )
    ],
    ids=str,
)
def test_lengths(length, rule, dtype, causal, output, device):
    """Causal and not, the normalised ones with a mask and states on both ends."""
    x, phi = make(rule, length, length, dtype=dtype, state=output, H=1, d_key=8)
    compare(
        device, rule, x, phi, causal=causal, normalize_output=output, return_state=output,
        key_padding_mask=mask(1, length) if output else None,
    )  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", RULES)
def test_many_pieces(rule, device):
    """Eight."""
    for causal in (True, False):
        x, phi = make(rule, 460, 460, dtype=torch.float32, H=1, d_key=8, d_value=40)
        compare(device, rule, x, phi, causal=causal, normalize_output=True, looser=2)


@pytest.mark.parametrize(
    "rule, dtype, group, site, output, states, limit",
    covering(
        [*RULES, "gated", "gated_delta"],
        [torch.float16, torch.float32],
        [1, 2, 3],
        [(True, 200, 200), (False, 200, 140), (False, 20, 260)],
        [False, True],
        ["none", "out", "in and out"],
        [kernels.SHARED_MEMORY, 0],
    ),
    ids=str,
)
def test_groups_of_pieces(rule, dtype, group, site, output, states, limit):
    """What the room for states divides the backward of a longer call into; not always evenly."""
    causal, T, S = site
    x, phi = make(rule, T, S, dtype=dtype, H=2, d_key=8, d_value=40, state=states == "in and out")
    compare(
        "shim", rule, x, phi, causal=causal, normalize_output=output, return_state=states != "none", limit=limit,
        group=group, key_padding_mask=mask(1, S) if output else None, looser=2,
    )  # fmt: skip


def test_groups_are_as_large_as_their_room_permits():
    """A gibibyte, or what the square root of the number of segments takes."""
    x = torch.empty(1, 1, 1, 64, dtype=torch.float16)
    for batch, length, expected in ((1, 4096, 64), (64, 4096, 64), (64, 65536, 94), (1024, 4096, 8)):
        call = kernels.make_call(
            x, x, x, torch.empty(1, 1, 1), rule="delta", feature_map=build_feature_map("dpfp", 64, nu=2), causal=True,
            normalize_features=True, normalize_output=False,
        )  # fmt: skip
        call.batch, call.targets, call.sources, call.segment = batch, length, length, 64
        size = 4 * kernels.workspace_of(call)
        assert call.checkpoints == expected
        assert size <= 1.25 * 2**30 or expected == math.isqrt(length // 64)


@pytest.mark.parametrize("rule", RULES)
def test_groups_have_no_room_for_what_is_known_of_all_keys(rule):
    """Then the first walk is that of a forward in one launch. The walk back takes the features of its own group."""
    x, phi = make(rule, 320, 320, dtype=torch.float16, H=1)
    options = dict(rule=rule, feature_map=phi, causal=True, normalize_features=True, normalize_output=False)
    grad_out = torch.randn_like(x["v"])
    for group, first in ((None, ["keys_kernel", "write_kernel"]), (3, ["forward_kernel"])):
        with shim.counted(kernels.kernels()) as launches:
            kernels.backward(grad_out, **x, **options, group=group)
        assert [one.kernel for one in launches][: len(first)] == first
        assert [one.kernel for one in launches].count("keys_kernel") == first.count("keys_kernel")


@pytest.mark.parametrize("rule, output", [("sum", True), ("delta", True), ("delta", False), ("gated", False)])
def test_pieces_of_a_backward_are_blocks_of_their_own(rule, output):
    """What blocks have to do does not grow with the length, but for the walks, which have a block for 32 columns."""
    most: dict[str, list[int]] = {}
    for length in (192, 320):
        x, phi = make(rule, length, length, dtype=torch.bfloat16, H=1, d_value=64)
        with shim.counted(kernels.kernels()) as launches:
            options = dict(rule=rule, feature_map=phi, causal=True, normalize_features=True, normalize_output=output)
            kernels.backward(torch.randn(1, length, 1, 64).bfloat16(), **x, **options)
        pieces, inverted = length // 64, rule == "delta" and not output
        first = [("keys_kernel", pieces), ("write_kernel", 2)]
        assert [(one.kernel, one.blocks) for one in launches] == [
            *([("forward_kernel", 2)] if rule == "delta" and output else first),
            ("preparation_kernel", pieces),
            ("inverted_walk_kernel" if inverted else "walk_kernel", 2),
            ("backward_kernel", pieces),
        ]
        for one in launches:
            most.setdefault(one.kernel, []).append(one.most_products)
    for kernel, (short, long) in most.items():
        if kernel in ("forward_kernel", "write_kernel", "walk_kernel", "inverted_walk_kernel"):
            assert 0 < short < long < most["backward_kernel"][1]
        else:
            assert short == long > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("d_value", [33, 65])
@pytest.mark.parametrize("feature_map", [DPFP, None], ids=str)
def test_odd_rows_of_whole_slices(feature_map, d_value, device):
    """Pairs of columns of a state in memory are not aligned; the shim ends the process where they are taken for it."""
    for limit in (kernels.SHARED_MEMORY, 0):  # 0: nor does the forward keep its state in shared memory
        x, phi = make("delta", 130, 130, dtype=torch.float16, H=1, feature_map=feature_map, d_value=d_value)
        compare(device, "delta", x, phi, limit=limit)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "feature_map, site, normalizer, rule, dtype, masked, states",
    covering(
        CUDA_MAPS,
        [(True, 140, 140), (False, 150, 40), (False, 9, 200), (False, 130, 129)],
        NORMALIZERS,
        RULES,
        [torch.float16, torch.float32],
        [False, True],
        ["none", "out", "in", "in and out"],
    ),
    ids=str,
)
def test_maps_normalizers_masks_and_sites(feature_map, site, normalizer, rule, dtype, masked, states, device):
    causal, T, S = site
    features, output = normalizer
    if rule == "delta" and not (features or output):  # else it diverges
        features = True
    d_key = 7 if dtype == torch.float32 else 20  # as in test_kernels
    given = dict(feature_map=feature_map, state=states.startswith("in"))
    x, phi = make(rule, T, S, dtype=dtype, d_key=d_key, d_value=10, B=2, H=1, **given)
    compare(
        device, rule, x, phi, causal=causal, normalize_features=features, normalize_output=output,
        key_padding_mask=mask(2, S) if masked else None, return_state=states.endswith("out"), looser=3,
    )  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "widths, rule, precision",
    covering(WIDTHS, RULES, PRECISIONS) + list(itertools.product([SLABS], RULES, PRECISIONS)),
    ids=str,
)
def test_widths(widths, rule, precision, device):
    (d_key, d_value, feature_map), (dtype, output) = widths, precision
    given = dict(d_key=d_key, d_value=d_value, feature_map=feature_map)
    x, phi = make(rule, 131, 131, dtype=dtype, H=1, state=True, **given)
    compare(device, rule, x, phi, normalize_output=output, return_state=True, looser=2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "d_value, slices, dtype",
    [(32, 1, torch.float32), (64, 2, torch.float16), (101, 4, torch.float32), (128, 4, torch.bfloat16)],
)
def test_slices(d_value, slices, dtype, rule, device):
    """Blocks that share a head, also in calls of one segment; the last one's columns may be fewer."""
    sites = [(True, 130, 130, True, True), (False, 70, 80, False, True)]
    if d_value == 101:
        sites += [(False, 80, 40, True, False), (True, 30, 30, True, False), (True, 30, 30, False, True)]
    for number, (causal, T, S, state, returned) in enumerate(sites):
        # With seed 4 a small denominator meets a small input, and the reference in float32 loses four digits too.
        x, phi = make(rule, T, S, dtype=dtype, d_key=4, d_value=d_value, state=state, seed=number + 10)
        inputs = {name: y for name, y in x.items() if name in "qkv"}
        call = kernels.make_call(
            **inputs, rule=rule, feature_map=phi, causal=causal, normalize_features=True, normalize_output=True
        )
        call.segment = 64
        call.initial_W = x["W"].data_ptr() if state else None
        assert kernels.slices(call) == (slices if state or T > 64 else 1)
        compare(
            device, rule, x, phi, causal=causal, normalize_output=number != 2, return_state=returned,
            key_padding_mask=mask(1, S) if number == 1 else None, looser=2,
        )  # fmt: skip


@pytest.mark.parametrize(
    "rule, dtype, site, state",
    covering(RULES, LIMITS, [(True, 200, 200), (False, 70, 150), (False, 150, 70)], [False, True]),
    ids=str,
)
def test_states_stand_in_memory_where_shared_memory_is_little(rule, dtype, site, state):
    causal, T, S = site
    x, phi = make(rule, T, S, dtype=dtype, H=2, d_value=40, state=state)
    compare(
        "shim", rule, x, phi, causal=causal, normalize_output=S >= T, return_state=state, limit=0,
        key_padding_mask=mask(1, S) if state else None, looser=2,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", list(LIMITS), ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_short_calls_take_several_segments_where_shared_memory_is_little(rule, dtype):
    for causal, T, S in ((True, 65, 65), (True, 128, 128), (False, 50, 100), (False, 100, 50)):
        x, phi = make(rule, T, S, dtype=dtype, H=1)
        compare("shim", rule, x, phi, causal=causal, normalize_output=True, limit=0, looser=2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_zero_denominators(rule, dtype, device):
    """Nothing but zeros up to the middle of the second segment: the state between them is zero too."""
    for features, output in NORMALIZERS[:3]:
        x, _ = make(rule, 130, 130, dtype=dtype, feature_map=None, d_key=6)
        x["q"][:, 2] = x["q"][:, 129] = 0
        x["k"][:, :80] = 0
        found = compare(device, rule, x, None, normalize_features=features, normalize_output=output, eps=0.0, looser=3)
        assert all(y.isfinite().all() for y in found.values())


@pytest.mark.parametrize(
    "causal, rule, dtype, state, feature_map",
    covering(CAUSAL, RULES, [torch.bfloat16, torch.float32], [False, True], [DPFP, ("favor", {"m": 70})]),
    ids=str,
)
def test_the_order_of_threads_does_not_matter(causal, rule, dtype, state, feature_map):
    x, phi = make(rule, 140, 140, dtype=dtype, H=1, feature_map=feature_map, state=state, d_key=8)
    same_in_both_orders(rule, x, phi, causal=causal, key_padding_mask=mask(1, 140), return_state=state)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("causal", [True, False])
def test_what_padded_keys_hold_reaches_nothing(rule, causal):
    x, phi = make(rule, 140, 140, dtype=torch.bfloat16)
    pads = mask(1, 140)
    options = dict(
        causal=causal, normalize_features=True, normalize_output=True, eps=1e-6, phi=phi, key_padding_mask=pads,
        return_state=True,
    )  # fmt: skip
    clean = by_shim(rule, x, **options)
    dirty = {n: y.masked_fill(pads.view(1, 140, *[1] * (y.dim() - 2)), float("nan")) for n, y in x.items() if n != "q"}
    for name, y in by_shim(rule, x | dirty, **options).items():
        assert torch.equal(clean[name], y), name


@pytest.mark.parametrize("rule", RULES)
def test_without_keys_or_queries(rule):
    """No key is as good as a padded one, and no query changes what is written."""
    options = dict(causal=False, normalize_features=True, normalize_output=True, eps=1e-6, return_state=True)
    for T, S in ((130, 1), (1, 130)):
        x, phi = make(rule, T, S, dtype=torch.float32, state=True)
        expected = by_shim(rule, x, phi=phi, key_padding_mask=torch.full((1, S), S == 1), **options)
        short = {n: y[:, :0] if y.shape[1] == 1 else y for n, y in x.items() if n not in "Wz"}
        found = by_shim(rule, x | short, phi=phi, key_padding_mask=None, **options)
        names = ["out", "W", "z", "gradient of q", "gradient of W", "gradient of z"] if S == 1 else ["W", "z"]
        for name in names:
            torch.testing.assert_close(found[name], expected[name])


@pytest.mark.parametrize("kilobytes", [163, 227])
def test_a_backward_of_several_segments_asks_for_no_more_than_there_is(kilobytes):
    """Its first walk is that of a forward; a state that this has room for stands in shared memory."""
    fitting = 0
    for d_key, nu in [(16, 25), (32, 12), (48, 12), (64, 97), (64, 110), (96, 114)]:
        k, v = torch.empty(1, 200, 1, d_key, dtype=torch.float16), torch.empty(1, 200, 1, 8, dtype=torch.float16)
        call = kernels.make_call(
            k, k, v, rule="sum", feature_map=build_feature_map("dpfp", d_key, nu=nu), causal=True,
            normalize_features=True, normalize_output=False,
        )  # fmt: skip
        resident = {}
        for backward in (False, True):
            needed = kernels.bytes_needed(call, backward=backward, limit=kilobytes * 1024)
            resident[backward] = call.resident
        fitting += needed <= kilobytes * 1024
        assert resident[True] == resident[False]
    assert fitting >= 4
