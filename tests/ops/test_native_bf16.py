"""bfloat16 in the compiled operators: AMX tiles where the processor has them, float32 otherwise, against float64.

The oracle sees the inputs as they are after rounding to bfloat16, so what is measured is the operator's own error.
"""

import itertools
from functools import partial

import pytest
import torch
from torch import Tensor

from tests import naive
from tests.maps import MAPS
from tests.ops.instruction_sets import chosen, on_each, usable
from tests.ops.test_native import LENGTHS, NORMALIZERS, build, call, make_inputs
from tests.pairs import covering

pytestmark = pytest.mark.needs("native")

# Relative to the largest value: bfloat16's own rounding of the output is 2e-3, that of the features as much again.
TOLERANCE = 5e-3
STATES = ("W", "z")  # float32, as sums are
RULES = [("sum", *n) for n in NORMALIZERS] + [("delta", *n) for n in NORMALIZERS if any(n)]


def rounded(x: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: y.float() if name in STATES else y.bfloat16() for name, y in x.items()}


def assert_near(expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    assert expected.keys() == found.keys()
    for name, a in expected.items():
        b = found[name]
        assert b.shape == a.shape, name
        assert b.dtype == (torch.float32 if name.rpartition(".")[2] in STATES or name[-1] in STATES else torch.bfloat16)
        if a.numel() == 0:
            continue
        largest = max(a.abs().max().item(), 1e-3 if "gradient" in name else 1e-30)  # as in test_native.py
        error = (a - b.double()).abs().max().item()
        assert error <= TOLERANCE * largest, f"{name}: error {error / largest:.1e} of the largest value"


def forward(rule: str, x: dict[str, Tensor], *, state: bool, **options) -> dict[str, Tensor]:
    out, final = call(rule, x, state=state, **options)
    named = {"out": out} | ({} if final is None else {"state.W": final.W, "state.z": final.z})
    return {name: y for name, y in named.items() if y is not None}


def with_and_without_tiles(compute):
    names = ["avx512", "amx_bf16"] if torch.ops.fwp.cpu_capability() == "amx_bf16" else []
    return on_each(compute, names).values() if names else [compute()]


def compare(rule: str, x: dict[str, Tensor], *, state: bool = False, **options) -> None:
    x = rounded(x)
    expected = forward(rule, {n: y.double() for n, y in x.items()}, state=state, backend="reference", **options)
    for found in with_and_without_tiles(lambda: forward(rule, x, state=state, backend="native", **options)):
        assert_near(expected, found)


@pytest.mark.parametrize("feature_map", MAPS, ids=str)
@pytest.mark.parametrize("rule, features, output", RULES)
def test_values(rule, features, output, feature_map):
    for (causal, T, S), (masked, state), d_key in itertools.product(
        [(True, 35, 35), (False, 5, 19), (False, 40, 3)], [(False, False), (True, True)], [7, 64]
    ):
        x = make_inputs(rule, T, S, H=1, feature_map=feature_map, state=state, d_key=d_key, d_value=d_key)
        mask = torch.zeros(2, S, dtype=torch.bool)
        mask[0, :1] = mask[0, -1:] = True
        mask[1] = True  # a row without a single key
        compare(
            rule, x, state=state, feature_map=build(feature_map, d_key), causal=causal,
            key_padding_mask=mask if masked else None, normalize_features=features, normalize_output=output,
            return_state=d_key == 7,
        )  # fmt: skip


@pytest.mark.parametrize("rule", ["sum", "delta"])
def test_the_numpy_loop_agrees(rule):
    x = rounded(make_inputs(rule, 40, 40, B=1, d_key=16, d_value=20))
    arrays = {name: y.double().numpy() for name, y in x.items()}
    out, W, _ = naive.attend(rule, **arrays, phi=naive.dpfp(2), normalize_features=True)
    phi = build(("dpfp", {"nu": 2}), 16)
    options = dict(feature_map=phi, normalize_features=True, normalize_output=False, state=False, backend="native")
    found = forward(rule, x, **options)
    assert_near({"out": torch.from_numpy(out), "state.W": torch.from_numpy(W)}, found)


@pytest.mark.parametrize("rule, causal, length", covering(["sum", "delta"], [True, False], [*LENGTHS, 32, 33]))
def test_lengths(rule, causal, length):
    phi = build(("dpfp", {"nu": 2}), 16)
    mask = torch.zeros(1, length, dtype=torch.bool)
    mask[:, length // 3 : length // 2] = True
    for state, T in ((False, length if causal else 3), (True, length if causal else 150)):
        x = make_inputs(rule, T, length, B=1, H=1, d_key=16, state=state)
        options = dict(feature_map=phi, causal=causal, key_padding_mask=mask, normalize_features=True)
        compare(rule, x, state=state, normalize_output=True, return_state=state, **options)


@pytest.mark.parametrize("rule", ["sum", "delta"])
def test_a_thousand_positions(rule):
    compare(rule, make_inputs(rule, 1000, 1000, B=1, H=1, d_key=16), feature_map=build(("dpfp", {"nu": 2}), 16))


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (17, 33), (24, 15), (33, 65), (128, 200)])
@pytest.mark.parametrize("name", ["identity", "elu", "dpfp", "favor"])
def test_widths(name, sizes):
    d_key, d_value = sizes
    feature_map = None if name == "identity" else (name, {"m": 3} if name == "favor" else {})
    for rule, causal in (("sum", True), ("delta", True)):
        x = make_inputs(rule, 50, 50, B=1, H=1, d_key=d_key, d_value=d_value, feature_map=feature_map, state=True)
        compare(rule, x, state=True, feature_map=build(feature_map, d_key), causal=causal, normalize_features=True)


@pytest.mark.parametrize("length", [33, 200])
@pytest.mark.parametrize("feature_map", [("elu", {}), ("dpfp", {"nu": 2}), ("favor", {"m": 32})], ids=str)
def test_repeated_and_peaky_keys(feature_map, length):
    x = make_inputs("delta", length, length, B=1, H=1, d_key=64, d_value=64, feature_map=feature_map)
    x["k"] = 3 * x["k"][:, :1].expand(x["k"].shape) + torch.arange(length)[None, :, None, None] % 3 / 4
    x["q"] = 2 * x["q"]
    for causal in (True, False):
        compare("delta", x, feature_map=build(feature_map, 64), causal=causal)


@pytest.mark.parametrize("length", [128, 200])
@pytest.mark.parametrize("causal", [True, False])
def test_one_key_written_again_and_again(causal, length):
    """Each write takes the last value back and only their sum is read: errors of rounded writes would add up."""
    x = make_inputs("delta", length, length, B=1, H=1, d_key=64, d_value=64, feature_map=None)
    x["q"] = x["k"] = torch.eye(64, dtype=torch.float64)[3].expand(x["k"].shape)
    x["beta"] = torch.full_like(x["beta"], 1 - 2.0**-8)
    compare("delta", x, causal=causal, normalize_features=False)


def with_gradients(rule: str, x: dict[str, Tensor], **options) -> dict[str, Tensor]:
    """Outputs, and gradients of a fixed random function of them whose weights bfloat16 represents."""
    leaves = {n: y.clone().requires_grad_() for n, y in x.items()}
    found = forward(rule, leaves, **options)
    generator = torch.Generator().manual_seed(7)
    loss = sum((y * torch.randn(y.shape, generator=generator).bfloat16().double()).sum() for y in found.values())
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        found[f"gradient of {name}"] = torch.zeros_like(leaf) if gradient is None else gradient
    return {name: y.detach() for name, y in found.items()}


@pytest.mark.parametrize("rule", ["sum", "delta"])
def test_gradients(rule):
    for feature_map, causal, state in itertools.product(
        (("elu", {}), ("dpfp", {"nu": 2})), (True, False), (False, True)
    ):
        x = rounded(make_inputs(rule, 40, 40, d_key=16, d_value=20, feature_map=feature_map, state=state))
        options = dict(feature_map=build(feature_map, 16), causal=causal, state=state, return_state=state)
        expected = with_gradients(rule, {n: y.double() for n, y in x.items()}, backend="reference", **options)
        for found in with_and_without_tiles(partial(with_gradients, rule, x, backend="native", **options)):
            assert_near(expected, found)


def test_strides_are_free():
    phi = build(("dpfp", {"nu": 2}), 7)
    x = rounded(make_inputs("delta", 40, 40))
    expected = forward("delta", {n: y.contiguous() for n, y in x.items()}, state=False, feature_map=phi)
    packed = torch.cat([x["q"], x["k"], x["v"]], dim=-1)  # one projection, sliced: rows at odd addresses
    views = {"q": packed[..., :7], "k": packed[..., 7:14], "v": packed[..., 14:]}
    views["beta"] = x["beta"].permute(2, 0, 1).contiguous().permute(1, 2, 0)
    turned = {n: y.transpose(-1, -2).contiguous().transpose(-1, -2) for n, y in views.items()}
    for given in (views, turned):
        found = forward("delta", given, state=False, feature_map=phi, backend="native")
        assert all(torch.equal(found[name], y) for name, y in expected.items())
    compare("delta", {n: y[:, :1].expand(y.shape) for n, y in x.items()}, feature_map=phi)
    out, _ = call("delta", x, state=False, feature_map=phi, backend="native")
    assert out.transpose(0, 1).is_contiguous()


@pytest.mark.parametrize("rule", ["sum", "delta"])
@pytest.mark.parametrize("causal", [True, False])
def test_what_padded_keys_hold_reaches_nothing(rule, causal):
    x = rounded(make_inputs(rule, 40, 40))
    mask = torch.zeros(2, 40, dtype=torch.bool)
    mask[0, :2] = mask[0, 15:] = mask[1, 37] = True
    options = dict(causal=causal, key_padding_mask=mask, normalize_output=True, state=False, backend="native")
    for feature_map in (None, ("elu", {}), ("dpfp", {"nu": 2}), ("favor", {"m": 5})):
        options["feature_map"] = build(feature_map, 7)
        clean = forward(rule, x, **options)
        for poison in (float("nan"), float("inf")):
            dirty = {n: y.masked_fill(mask.view(2, 40, *[1] * (y.dim() - 2)), poison) for n, y in x.items() if n != "q"}
            found = forward(rule, x | dirty, **options)
            for name, y in clean.items():
                assert torch.equal(found[name], y), name


@pytest.mark.parametrize("rule", ["sum", "delta"])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_nan_reaches_what_depends_on_it_only(rule, name):
    x = rounded(make_inputs(rule, 70, 70))
    x[name][0, 45, 1, 2] = float("nan")
    for feature_map, normalize_output in itertools.product(("elu", "dpfp"), (False, True)):
        options = dict(feature_map=build((feature_map, {}), 7), normalize_output=normalize_output, state=False)
        expected = forward(rule, {n: y.double() for n, y in x.items()}, backend="reference", **options)
        found = forward(rule, x, backend="native", **options)
        for part, y in expected.items():
            assert torch.equal(found[part].isnan(), y.isnan()), part


def test_zero_denominators_give_zero():
    for rule, (features, output) in itertools.product(("sum", "delta"), NORMALIZERS):
        x = make_inputs(rule, 6, 6, feature_map=None)
        x["q"][:, 2] = 0
        x["k"][:, :3] = 0
        if rule == "delta":
            x["beta"] = torch.full((2, 6, 2), 0.5, dtype=torch.float64)
        compare(rule, x, normalize_features=features, normalize_output=output, eps=0.0)


def test_scratch_is_written_before_it_is_read():
    """A large call leaves NaN in the thread's scratch; the next small one must not see it."""
    phi = build(("dpfp", {"nu": 2}), 16)
    large = rounded(make_inputs("delta", 130, 130, d_key=16))
    large = {n: torch.full_like(y, float("nan")) for n, y in large.items()}
    for options in (dict(), dict(causal=False), dict(normalize_output=True)):
        for rule, T, S in (("sum", 3, 3), ("delta", 17, 17), ("delta", 130, 130)):
            forward("delta", large, state=False, backend="native", feature_map=phi, **options)
            compare(rule, make_inputs(rule, T, S, d_key=16, d_value=20), feature_map=phi, **options)


def test_threads_do_not_change_a_bit():
    x = rounded(make_inputs("delta", 70, 70, B=3, H=3))
    options = dict(feature_map=build(("dpfp", {"nu": 2}), 7), normalize_output=True, state=False, backend="native")
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(forward("delta", x, **options))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, other[name]) for name, a in found[0].items())


def raw_arguments(state: bool) -> tuple:
    x = {n: y.requires_grad_() for n, y in rounded(make_inputs("delta", 5, 5, state=state)).items()}
    beta = x["beta"].detach().float().requires_grad_()
    tensors = (x["q"], x["k"], x["v"], beta, None, None, x.get("W"), x.get("z"), None)
    return (*tensors, "delta", "dpfp", 28, 1.0, True, False, True, state, 1e-6, True)


@pytest.mark.slow
@pytest.mark.parametrize("state", [False, True])
def test_opcheck(state):
    # Not the gradients' comparison: it adds the state's float32 to the output's bfloat16.
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.fwp.fast_weights.default, raw_arguments(state), test_utils=checks)


def test_states_and_beta_are_float32():
    q, k, v, beta, _, _, W, z, *rest = raw_arguments(True)
    with pytest.raises(ValueError, match="initial_W is of type BFloat16, expected Float for inputs of type BFloat16"):
        torch.ops.fwp.fast_weights(q, k, v, beta, None, None, W.bfloat16(), z, *rest)
    with pytest.raises(ValueError, match="beta is of type BFloat16, expected Float for inputs of type BFloat16"):
        torch.ops.fwp.fast_weights(q, k, v, beta.bfloat16(), None, None, W, z, *rest)


def test_mixed_types_are_computed_in_float32():
    x = rounded(make_inputs("delta", 12, 12))
    found = forward("delta", x | {"k": x["k"].float()}, state=False, backend="native")
    expected = forward("delta", {n: y.float() for n, y in x.items()}, state=False, backend="native")
    assert torch.equal(found["out"], expected["out"].bfloat16()) and torch.equal(found["state.W"], expected["state.W"])


def test_without_tiles_bfloat16_is_computed_in_float32():
    """float32's results, rounded."""
    x = rounded(make_inputs("delta", 40, 40))
    options = dict(state=False, backend="native", feature_map=build(("dpfp", {"nu": 2}), 7))
    for name in usable():
        with chosen(name):
            found, expected = (forward("delta", y, **options) for y in (x, {n: y.float() for n, y in x.items()}))
        assert torch.equal(found["out"], expected["out"].bfloat16())
        assert torch.equal(found["state.W"], expected["state.W"])


def test_tiles_run_where_the_processor_has_them():
    """Rounding tells the two ways apart: what float32 gives and rounds last is not what tiles give."""
    if torch.ops.fwp.cpu_capability() != "amx_bf16":
        pytest.skip("this processor has no AMX, or FWP_CPU_CAPABILITY forbids it")
    x = rounded(make_inputs("sum", 64, 64, d_key=64, d_value=64))
    options = dict(state=False, backend="native", feature_map=build(("elu", {}), 64))
    found = forward("sum", x, **options)["out"]
    assert not torch.equal(found, forward("sum", {n: y.float() for n, y in x.items()}, **options)["out"].bfloat16())
