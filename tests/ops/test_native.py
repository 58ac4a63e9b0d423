"""The compiled operators against the reference in float64: values, gradients and layouts, on every instruction set."""

import itertools

import pytest
import torch

from fwp_fairseq.ops import RULES
from fwp_fairseq.ops.call import CORRECTING
from tests.maps import MAPS
from tests.ops.native_calls import build, call, compare, make_inputs, results
from tests.pairs import covering

pytestmark = pytest.mark.needs("native")

NORMALIZERS = [(True, False), (False, True), (True, True), (False, False)]
LENGTHS = [0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200]


@pytest.mark.parametrize("reads", [("out",), ("state.W",), ("state.z",), ("out", "state.z")], ids="-".join)
@pytest.mark.parametrize("rule", RULES)
def test_outputs_that_nothing_reads_have_no_gradient(rule, reads):
    x = make_inputs(rule, 20, 20, state=True)
    phi = build(("dpfp", {"nu": 2}), 7)
    options = dict(feature_map=phi, causal=True, normalize_features=True, normalize_output=True, state=True)
    compare(rule, x, reads=reads, **options)


@pytest.mark.parametrize("feature_map", MAPS, ids=str)
@pytest.mark.parametrize(
    "rule, features, output",
    # Without a normaliser the delta rules diverge.
    [(rule, *n) for rule in RULES for n in NORMALIZERS if rule not in CORRECTING or any(n)],
)
def test_values_and_gradients(rule, features, output, feature_map):
    phi = build(feature_map, 7)
    calls = covering([(True, 35, 35), (False, 5, 19), (False, 30, 3)], [False, True], [False, True], [False, True])
    half = (MAPS.index(feature_map) + RULES.index(rule) + features + output) % 2  # each meets every other map and rule
    for (causal, T, S), masked, state, return_state in calls[half::2]:
        x = make_inputs(rule, T, S, feature_map=feature_map, state=state)
        mask = torch.zeros(2, S, dtype=torch.bool)
        mask[0, :1] = mask[0, -1:] = True  # both sides
        mask[1] = True  # a row without a single key
        compare(
            rule, x, state=state, feature_map=phi, causal=causal, key_padding_mask=mask if masked else None,
            normalize_features=features, normalize_output=output, return_state=return_state,
        )  # fmt: skip


@pytest.mark.parametrize("rule, causal, length", covering(RULES, [True, False], LENGTHS))
def test_lengths(rule, length, causal):
    phi = build(("dpfp", {"nu": 2}), 7)
    mask = torch.zeros(1, length, dtype=torch.bool)
    mask[:, length // 3 : length // 2] = True
    for state, T in ((False, length if causal else 3), (True, length if causal else 150)):
        x = make_inputs(rule, T, length, B=1, state=state)
        options = dict(state=state, feature_map=phi, causal=causal, key_padding_mask=mask, normalize_output=True)
        compare(rule, x, return_state=state, **options)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (16, 16), (17, 33), (13, 64), (64, 63), (64, 64)])
@pytest.mark.parametrize("name", ["elu", "dpfp", "favor"])
def test_widths(name, sizes):
    d_key, d_value = sizes
    feature_map = (name, {"m": 3} if name == "favor" else {})
    for rule in RULES:
        x = make_inputs(rule, 18, 18, d_key=d_key, d_value=d_value, feature_map=feature_map, state=True)
        compare(rule, x, state=True, feature_map=build(feature_map, d_key), normalize_features=True)


@pytest.mark.parametrize("length", [10, 32, 128, 300])
@pytest.mark.parametrize("rule", RULES)
def test_single_precision(rule, length):
    feature_map = ("elu", {}) if length in (10, 300) else ("dpfp", {"nu": 2})
    x = make_inputs(rule, length, length, B=1, d_key=64, d_value=64, feature_map=feature_map)
    compare(rule, {n: y.float().double() for n, y in x.items()}, torch.float32, feature_map=build(feature_map, 64))


@pytest.mark.parametrize("rule", ["sum", "delta"])
@pytest.mark.parametrize("causal", [True, False])
def test_sentences_of_which_no_state_is_wanted(rule, causal):
    """Their features are made in groups, of which 64 and more dimensions need several."""
    mask = torch.zeros(2, 50, dtype=torch.bool)
    mask[1, 7:20] = mask[1, 49:] = True
    for length, nu, output in itertools.product((9, 32, 50), (1, 3), (False, True)):
        feature_map = ("dpfp", {"nu": nu})
        x = make_inputs(rule, length, length, B=2, H=1, d_key=40, d_value=20, feature_map=feature_map)
        compare(
            rule, {n: y.float().double() for n, y in x.items()}, torch.float32, feature_map=build(feature_map, 40),
            causal=causal, key_padding_mask=mask[:, :length], normalize_features=True, normalize_output=output,
            return_state=False,
        )  # fmt: skip


def test_strides_are_free_but_for_the_last():
    phi = build(("dpfp", {"nu": 2}), 7)
    x = make_inputs("delta", 20, 20)
    expected = call("delta", {n: y.contiguous() for n, y in x.items()}, state=False, feature_map=phi, backend="native")
    packed = torch.cat([x["q"], x["k"], x["v"].expand(2, 20, 2, 5)], dim=-1)  # one projection, sliced
    views = {"q": packed[..., :7], "k": packed[..., 7:14], "v": packed[..., 14:]}
    views["beta"] = x["beta"].permute(2, 0, 1).contiguous().permute(1, 2, 0)
    found = call("delta", views, state=False, feature_map=phi, backend="native")
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1].W, expected[1].W)
    turned = {n: y.transpose(-1, -2).contiguous().transpose(-1, -2) for n, y in views.items()}  # last one strided too
    found = call("delta", turned, state=False, feature_map=phi, backend="native")
    assert torch.equal(found[0], expected[0])
    repeated = {n: y[:, :1].expand(*y.shape) for n, y in x.items()}
    compare("delta", repeated, feature_map=phi)


def test_scratch_is_written_before_it_is_read():
    """A large call leaves NaN in the thread's scratch; the next small one must not see it."""
    phi = build(("dpfp", {"nu": 2}), 16)
    large = {n: torch.full_like(y, float("nan")) for n, y in make_inputs("delta", 300, 300, d_key=16).items()}
    for options in (dict(), dict(causal=False), dict(normalize_output=True)):
        results("delta", large, backend="native", feature_map=phi, **options)
        rules = (("sum", 3), ("delta", 17), ("delta", 130), ("gated", 19), ("gated_delta", 70))
        for rule, length in rules:
            results("delta", large, backend="native", feature_map=phi, **options)
            x = make_inputs(rule, length, length, d_key=16, d_value=20)
            compare(rule, x, feature_map=phi, **options)
