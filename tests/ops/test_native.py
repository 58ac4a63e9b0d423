"""The compiled operators against the reference in float64: values, gradients, layouts, instruction sets, threads."""

import itertools
import os
import subprocess

import pytest
import torch
from torch import Tensor

from fwp_fairseq import ops
from fwp_fairseq.ops import RULES, STRENGTHS
from fwp_fairseq.ops.call import CORRECTING
from tests.maps import MAPS, build_map
from tests.ops.cases import OPCHECKS
from tests.ops.instruction_sets import chosen, on_each, usable
from tests.pairs import covering

pytestmark = pytest.mark.needs("native")

# Relative to the largest value of the tensor. float64: only the order of additions differs.
# float32: 1e-6 is about 8 units in the last place; gradients pass through three more products.
TOLERANCE = {torch.float64: (1e-10, 1e-10), torch.float32: (1e-6, 1e-5)}
NORMALIZERS = [(True, False), (False, True), (True, True), (False, False)]
LENGTHS = [0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200]


def build(feature_map, d_key: int):
    return None if feature_map is None else build_map(feature_map[0], d_key, **feature_map[1]).eval()


def make_inputs(
    rule: str, T: int, S: int, *, B=2, H=2, d_key=7, d_value=5, feature_map=("dpfp", {"nu": 2}), state=False, seed=0
) -> dict[str, Tensor]:
    """float64; q and k as (T, B, C) seen as (B, T, H, d)."""
    generator = torch.Generator().manual_seed(seed + 1000 * T + S)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = {"q": normal(T, B, H, d_key).transpose(0, 1), "k": normal(S, B, H, d_key).transpose(0, 1)}
    if feature_map is None:  # normalisers expect features that are not negative
        x = {name: y.abs() for name, y in x.items()}
    x["v"] = normal(B, S, H, d_value)
    if rule != "sum":
        x["beta"] = normal(B, S, H).sigmoid()
    if rule == "gated_delta":
        x["alpha"] = normal(B, S, H).sigmoid() ** 0.3
    if state:
        d_dot = getattr(build(feature_map, d_key), "d_dot", d_key)
        x["W"] = normal(B, H, d_dot, d_value)
        x["z"] = normal(B, H, d_dot).abs()
    return x


def call(rule: str, x: dict[str, Tensor], *, state: bool, **options):
    given = [x[name] for name in ("q", "k", "v", *STRENGTHS[rule])]
    initial = (x["W"], x["z"]) if state else None
    options = {"return_state": True} | options
    return getattr(ops, f"{rule}_rule")(*given, initial_state=initial, **options)


def results(
    rule: str, x: dict[str, Tensor], dtype=torch.float64, *, state=False, reads=("out", "state.W", "state.z"), **options
) -> dict[str, Tensor]:
    """Outputs, and gradients of a fixed random function of those that ``reads`` names."""
    x = {name: y.detach().to(dtype).requires_grad_() for name, y in x.items()}
    out, final = call(rule, x, state=state, **options)
    found = {"out": out}
    if final is not None:
        found["state.W"] = final.W
        if final.z is not None:
            found["state.z"] = final.z
    generator = torch.Generator().manual_seed(7)
    loss = sum(
        (found[name] * torch.randn(found[name].shape, generator=generator, dtype=torch.float64).to(dtype)).sum()
        for name in reads
        if name in found
    )
    loss = loss + sum(y.sum() * 0 for y in x.values() if y.numel() == 0)  # without a position nothing needs a gradient
    for name, gradient in zip(x, torch.autograd.grad(loss, list(x.values()), allow_unused=True), strict=True):
        found[f"gradient of {name}"] = torch.zeros_like(x[name]) if gradient is None else gradient
    return {name: y.detach() for name, y in found.items()}


def assert_agree(expected: dict[str, Tensor], found: dict[str, Tensor], dtype=torch.float64, where="") -> None:
    forward, backward = TOLERANCE[dtype]
    assert expected.keys() == found.keys()
    for name, a in expected.items():
        b = found[name]
        assert b.shape == a.shape and b.dtype == dtype, f"{name} {where}"
        if a.numel() == 0:
            continue
        # A single key cancels out of a normalised output: its gradient is eps-sized, the rounding of it is not.
        largest = max(a.abs().max().item(), 1e-3 if "gradient" in name else 1e-30)
        limit = (backward if "gradient" in name else forward) * largest
        error = (a - b.double()).abs().max().item()
        assert error <= limit, f"{name}: error {error:.2e}, at most {limit:.2e} {where}"


def compare(rule: str, x: dict[str, Tensor], dtype=torch.float64, **options) -> None:
    """The kernels of every instruction set against the reference."""
    expected = results(rule, x, backend="reference", **options)
    for name, found in on_each(lambda: results(rule, x, dtype, backend="native", **options)).items():
        assert_agree(expected, found, dtype, name)


@pytest.mark.parametrize("reads", [("out",), ("state.W",), ("state.z",), ("out", "state.z")], ids="-".join)
@pytest.mark.parametrize("rule", RULES)
def test_outputs_that_nothing_reads_have_no_gradient(rule, reads):
    x = make_inputs(rule, 20, 20, state=True)
    phi = build(("dpfp", {"nu": 2}), 7)
    options = dict(feature_map=phi, causal=True, normalize_features=True, normalize_output=True, state=True)
    compare(rule, x, reads=reads, **options)


@pytest.fixture(params=["default", "avx2", "avx512"])
def instruction_set(request):
    if request.param not in usable():
        pytest.skip(f"this processor has no {request.param}")
    with chosen(request.param):
        yield request.param


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


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["delta", "gated", "gated_delta"])
@pytest.mark.parametrize("causal", [True, False])
def test_strengths_at_their_ends(rule, causal):
    """beta and alpha exactly 0 and 1, here and there or everywhere: products vanish, nothing may divide by them."""
    for length, (low, high) in itertools.product((40, 150), [(0, 1), (0, 0), (1, 1), (1e-30, 1 - 1e-7)]):
        x = make_inputs(rule, length if causal else 50, length, B=1, state=True)
        x["beta"][:, ::3], x["beta"][:, 1::5] = low, high
        if low == high:
            x["beta"][:] = low
        if "alpha" in x:
            x["alpha"][:] = 1 - x["beta"].roll(1, 1)
        for output in (True, False):
            options = dict(state=True, feature_map=build(("dpfp", {"nu": 2}), 7), causal=causal)
            compare(rule, x, normalize_features=True, normalize_output=output, **options)


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_single(dtype):
    x = {name: y.to(dtype) for name, y in make_inputs("delta", 12, 12).items()}
    phi = build(("dpfp", {"nu": 2}), 7)
    out, state = call("delta", x, state=False, feature_map=phi, backend="native")
    expected, _ = call("delta", {n: y.float() for n, y in x.items()}, state=False, feature_map=phi, backend="native")
    assert out.dtype == dtype and state.W.dtype == torch.float32
    assert torch.equal(out, expected.to(dtype))


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


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("causal", [True, False])
def test_what_padded_keys_hold_reaches_nothing(rule, causal, instruction_set):
    x = make_inputs(rule, 20, 20)
    mask = torch.zeros(2, 20, dtype=torch.bool)
    mask[0, :2] = mask[0, 15:] = mask[1, 7] = True
    phi = build(("dpfp", {"nu": 2}), 7)
    options = dict(feature_map=phi, causal=causal, key_padding_mask=mask, normalize_output=True)
    clean = results(rule, x, backend="native", **options)
    for poison in (float("nan"), float("inf")):
        dirty = {n: y.masked_fill(mask.view(2, 20, *[1] * (y.dim() - 2)), poison) for n, y in x.items() if n != "q"}
        found = results(rule, x | dirty, backend="native", **options)
        for name, y in clean.items():
            assert torch.equal(found[name], y), name
        for name in ("k", "v"):
            assert (found[f"gradient of {name}"][mask] == 0).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_nan_reaches_what_depends_on_it_only(rule, name, instruction_set):
    x = make_inputs(rule, 40, 40)
    x[name][0, 21, 1, 2] = float("nan")
    for normalize_output in (False, True):
        options = dict(feature_map=build(("elu", {}), 7), normalize_output=normalize_output, state=False)
        expected, _ = call(rule, x, backend="reference", **options)
        found, _ = call(rule, x, backend="native", **options)
        assert torch.equal(found.isnan(), expected.isnan())


def test_zero_denominators_give_zero_and_no_gradient():
    x = make_inputs("sum", 6, 6, feature_map=None)
    x["q"][:, 2] = 0
    x["k"][:, :3] = 0
    for features, output in NORMALIZERS:
        for rule in RULES:
            y = x | dict.fromkeys(STRENGTHS[rule], torch.full((2, 6, 2), 0.5, dtype=torch.float64))
            options = dict(normalize_features=features, normalize_output=output, eps=0.0)
            compare(rule, y, **options)
            assert all(z.isfinite().all() for z in results(rule, y, backend="native", **options).values())


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


def raw_arguments(rule="delta", feature_map="dpfp", d_dot=28, **changes):
    state = changes.pop("state", False)
    x = make_inputs(rule, 5, 5, state=state)
    y = {n: x[n].clone().requires_grad_() for n in x}
    values = {
        **{n: y.get(n) for n in ("q", "k", "v", "beta", "alpha")}, "mask": None, "W": y.get("W"), "z": y.get("z"),
        "projection": None, "rule": rule, "map": feature_map, "d_dot": d_dot, "scale": 1.0, "causal": True,
        "both_ways": False, "features": True, "output": state, "eps": 1e-6, "return_state": True,
    }  # fmt: skip
    values.update(changes)
    return tuple(values.values())


@pytest.mark.slow
@pytest.mark.parametrize("rule, state, check", covering(RULES, [False, True], OPCHECKS))
def test_opcheck(rule, state, check):
    torch.library.opcheck(torch.ops.fwp.fast_weights.default, raw_arguments(rule, state=state), test_utils=check)
    *inputs, _ = raw_arguments(rule, state=state)
    inputs = [y.detach() if isinstance(y, Tensor) else y for y in inputs]
    gradient = torch.ones_like(inputs[2])
    arguments = (gradient, None, None, *inputs)
    torch.library.opcheck(torch.ops.fwp.fast_weights_backward.default, arguments, test_utils=check)


def test_second_derivatives_are_refused():
    x = {n: y.requires_grad_() for n, y in make_inputs("sum", 3, 3).items()}
    out, _ = call("sum", x, state=False, feature_map=build(("elu", {}), 7), backend="native")
    (gradient,) = torch.autograd.grad(out.sum(), x["q"], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        gradient.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule, compiler", [("delta", "eager"), *((rule, "aot_eager") for rule in ("delta", "gated", "gated_delta"))]
)
def test_compiles_without_a_graph_break(rule, compiler):
    phi = build(("dpfp", {"nu": 2}), 7)
    x = make_inputs(rule, 12, 12)

    operator = getattr(ops, f"{rule}_rule")

    def run(*tensors):
        return operator(*tensors, feature_map=phi, backend="native")[0].square()

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend=compiler)
    outcomes = []
    for function in (run, compiled):
        y = [a.detach().clone().requires_grad_() for a in x.values()]
        out = function(*y)
        outcomes.append((out, *torch.autograd.grad(out.sum(), y)))
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", ["delta", "gated", "gated_delta"])
def test_threads_do_not_change_a_bit(rule):
    x = make_inputs(rule, 70, 70, B=3, H=3)
    options = dict(feature_map=build(("dpfp", {"nu": 2}), 7), normalize_output=True, backend="native")
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(results(rule, x, torch.float32, **options))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, other[name]) for name, a in found[0].items())


def test_instruction_sets_round_differently():
    """So each of them ran: sums of as many products as a vector holds are taken in another order."""
    x = {n: y.float() for n, y in make_inputs("sum", 64, 64, d_key=64, d_value=64).items()}
    found = on_each(lambda: call("sum", x, state=False, feature_map=build(("elu", {}), 64), backend="native")[0])
    assert len({y.numpy().tobytes() for y in found.values()}) == len(found)


@pytest.mark.slow
def test_an_unknown_capability_is_refused(forked_python):
    command = [forked_python.program, "-c", "import fwp_fairseq.ops, torch; torch.ops.fwp.cpu_capability()"]
    environment = os.environ | {"FWP_CPU_CAPABILITY": "sse9"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    message = "FWP_CPU_CAPABILITY is sse9, expected default, avx2 or avx512"
    assert run.returncode != 0 and message in run.stderr
