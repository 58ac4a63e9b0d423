"""The CUDA kernels of the operators against the reference in float64, values and gradients."""

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from fwp_fairseq import ops
from fwp_fairseq.ops.call import CORRECTING, DECAYING, GATES, RULES
from tests.cuda.cases import DPFP, LIMITS, NORMALIZERS, compare, emulated, make, mask, run
from tests.maps import MAPS
from tests.pairs import covering

pytestmark = [pytest.mark.slow, pytest.mark.needs("native", "cuda")]

LENGTHS = [1, 13, 16, 17, 50, 64, 65, 100, 128, 129, 200]  # of a chunk's parts, of one chunk, of several
STATES = ["none", "out", "in and out"]


def bounded(rule: str, normalizer: tuple[bool, bool]) -> tuple[bool, bool]:
    """Rules that correct diverge without any normaliser."""
    return (True, False) if rule in CORRECTING and not any(normalizer) else normalizer


def hostile(x: dict[str, Tensor], most: float) -> None:
    """Nothing forgotten, or all else, exactly and almost; a share left that is 1 in float32; a sign that changes.

    What is forgotten lies well before the end: with one key left, the gradient of q is a difference of equal numbers.
    A share above ``most`` is 0.5 instead: keys that divide what they read by what is left need a half of it.
    """
    forgotten = 1 - x["alpha"] if "alpha" in x else x["beta"]
    length = forgotten.shape[1]
    for start, step, value in ((0, 5, 0.0), (4, 29, 1.0), (20, 37, 1 - 1e-6), (3, 7, 1e-9), (25, 41, 1.5)):
        forgotten[:, start:length:step] = 0.5 if value > most else value
    if "alpha" in x:
        x["alpha"] = 1 - forgotten


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "length, dtype, normalizer, state, causal, masked",
    covering(LENGTHS, LIMITS, NORMALIZERS, STATES, [True, False], [False, True]),
    ids=str,
)
def test_values_and_gradients(rule, length, dtype, normalizer, state, causal, masked):
    """Pads hold NaN, and W and z have gradients on both ends."""
    features, output = bounded(rule, normalizer)
    output = output and length > 1  # else the gradient of q is a difference of equal numbers
    x, phi = make(rule, length, length, dtype=dtype, H=1, state=state == "in and out")
    pads = mask(1, length) if masked and length > 5 else None
    if pads is not None:
        for name in ("k", "v", *GATES[rule]):
            x[name].masked_fill_(pads.view(1, length, *[1] * (x[name].dim() - 2)), float("nan"))
    compare(
        rule, x, phi, causal=causal, normalize_features=features, normalize_output=output, key_padding_mask=pads,
        return_state=state != "none", looser=2,
    )  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_long(rule):
    x, phi = make(rule, 400, 400, dtype=torch.bfloat16, H=1, d_key=8, d_value=8, state=True)
    compare(rule, x, phi, normalize_output=True, return_state=True, looser=1.5)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float16, torch.bfloat16)], ids=str)
@pytest.mark.parametrize("feature_map", [None, DPFP, ("elu", {})], ids=str)
def test_keys_of_another_type_than_values(rule, dtypes, feature_map):
    dtype, x_dtype = dtypes
    x, phi = make(rule, 140, 140, dtype=dtype, x_dtype=x_dtype, H=1, state=True, feature_map=feature_map)
    compare(rule, x, phi, return_state=True, looser=2)


@pytest.mark.parametrize("rule", RULES)
def test_many_heads(rule):
    """On a GPU so many that walks are 64 columns wide."""
    batch = 1 if emulated else 40
    x, phi = make(rule, 70, 70, dtype=torch.bfloat16, B=batch, H=8, d_key=20, d_value=70, state=True)
    compare(rule, x, phi, normalize_output=True, return_state=True, looser=2)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "T, S, normalizer, state", covering([7, 60, 70], [9, 64, 140], NORMALIZERS[:3], STATES), ids=str
)
def test_cross_attention(rule, T, S, normalizer, state):
    features, output = normalizer
    x, phi = make(rule, T, S, dtype=torch.float16, H=1, state=state == "in and out")
    compare(
        rule, x, phi, causal=False, normalize_features=features, normalize_output=output, return_state=state != "none",
        key_padding_mask=mask(1, S), looser=2,
    )  # fmt: skip


@pytest.mark.parametrize("rule, normalizer", covering(DECAYING, NORMALIZERS[:3]), ids=str)
@pytest.mark.parametrize("length", [50, 140])
def test_decays_of_any_value(rule, length, normalizer):
    features, output = normalizer
    x, phi = make(rule, length, length, dtype=torch.float16, H=1, state=True)
    hostile(x, most=0.5 if output and rule in CORRECTING else 2)
    options = dict(normalize_features=features, normalize_output=output, return_state=True)
    # Under the gated rule some denominators are 300 times smaller than others, as differences of products of 11 bits.
    compare(rule, x, phi, looser=12 if output and rule == "gated" and length > 64 else 2, **options)


@pytest.mark.parametrize(
    "rule, feature_map, normalizer, masked", covering(RULES, MAPS, NORMALIZERS, [False, True]), ids=str
)
def test_maps_and_normalizers(rule, feature_map, normalizer, masked):
    features, output = bounded(rule, normalizer)
    x, phi = make(rule, 19, 19, dtype=torch.float16, d_key=20, d_value=10, B=2, H=1, feature_map=feature_map)
    pads = mask(2, 19) if masked else None
    compare(
        rule, x, phi, normalize_features=features, normalize_output=output, key_padding_mask=pads, looser=2
    )  # fmt: skip


@pytest.mark.parametrize("dtype", list(LIMITS), ids=str)
def test_favors_exponents_are_clipped(dtype):
    """A row of the projection, long enough, as input: its exponent exceeds the largest that counts."""
    x, phi = make("sum", 12, 12, dtype=dtype, d_key=128, H=1, feature_map=("favor", {"m": 5}))
    for name, token in (("q", 3), ("k", 5), ("k", 7)):
        x[name][:, token] = (128**0.25 * phi.projection[token % 5]).to(dtype)
    keys = 128**-0.25 * x["k"].double()
    exponents = keys @ phi.projection.double().T - keys.square().sum(-1, keepdim=True) / 2
    assert exponents.max() > 40
    compare("sum", x, phi, looser=3)


@pytest.mark.parametrize("rule", ["delta", "gated_delta"])
@pytest.mark.parametrize(
    "d_key, d_value, feature_map, length",
    [(1, 1, ("dpfp", {"nu": 1}), 20), (33, 67, DPFP, 70), (64, 136, ("dpfp", {"nu": 8}), 20), (200, 3, None, 70)],
    ids=str,
)
def test_widths(rule, d_key, d_value, feature_map, length):
    """Up to 1,024 features; values in several slices."""
    x, phi = make(
        rule, length, length, dtype=torch.bfloat16, d_key=d_key, d_value=d_value, H=1, feature_map=feature_map,
        state=True,
    )  # fmt: skip
    compare(rule, x, phi, normalize_output=d_key > 1, return_state=True, looser=2)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length, scale", [(32, 1e-4), (60, 1e4), (128, 1e-4), (100, 1e4), (140, 1e-4), (140, 1e4)])
def test_inputs_of_any_magnitude(rule, length, scale):
    """Powers of two keep operands in the range of halves."""
    x, phi = make(rule, length, length, dtype=torch.bfloat16, H=1, d_key=64, scale=scale)
    x["v"].mul_(scale)
    compare(rule, x, phi, looser=1.5)


def decades(x: Tensor) -> Tensor:
    """Tokens of a head whose sizes lie three decades apart."""
    size = 10 ** (-3 * torch.rand(x.shape[1], generator=torch.Generator().manual_seed(5)))
    return x.mul_(size[None, :, None, None].to(x.dtype))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [30, 60, 120, 140])
def test_tokens_three_decades_apart(rule, length):
    """Outputs of small tokens are as exact as those of large ones."""
    x, phi = make(rule, length, length, dtype=torch.bfloat16, H=1, d_key=64)
    for name in ("q", "k", "v"):
        decades(x[name])
    compare(rule, x, phi, looser=1.5)
    options = dict(
        causal=True, normalize_features=True, normalize_output=rule not in CORRECTING, return_state=False,
    )  # fmt: skip
    expected = run(rule, x, phi, backend="reference", device="cpu", dtype=torch.float64, **options)["out"]
    found = run(rule, x, phi, backend="native", device="cuda", **options)["out"]
    phi.to("cpu")
    errors = (found.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert errors.max() <= 4e-3


WORKSPACE = {
    "sum": (307_000, 720_000),
    "delta": (343_000, 755_000),
    "gated": (307_000, 786_000),
    "gated_delta": (343_000, 821_000),
}


@pytest.mark.skipif(emulated is None, reason="only what an emulated device allocates is seen by the profiler of a CPU")
@pytest.mark.parametrize("rule", RULES)
def test_workspace(rule):
    """Bytes of a head of 256 tokens and features, forward and backward: features are in no memory."""
    x, phi = make(rule, 256, 256, dtype=torch.bfloat16, H=1, d_key=64, d_value=64)
    x = {name: y.cuda().requires_grad_() for name, y in x.items()}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as forward:
        out, _ = getattr(ops, f"{rule}_rule")(
            *x.values(), feature_map=phi.cuda(), normalize_output=False, backend="native"
        )
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as backward:
        torch.autograd.grad(out, list(x.values()), torch.ones_like(out))
    for done, most in zip((forward, backward), WORKSPACE[rule], strict=True):
        used = max(event.self_cpu_memory_usage for event in done.events() if event.name == "aten::empty")
        assert 0.99 * most < used <= most


@pytest.mark.parametrize("rule", RULES)
def test_keys_without_features_read_as_zero(rule):
    """eps = 0 and nothing written: 0 / 0 is 0."""
    x, phi = make(rule, 20, 20, dtype=torch.float16)
    x["k"].zero_()
    found = run(
        rule, x, phi, backend="native", device="cuda", causal=True, normalize_features=True, normalize_output=True,
        eps=0.0, return_state=False,
    )  # fmt: skip
    assert not found["out"].any() and all(y.isfinite().all() for y in found.values())
