"""Sentences of up to 128 tokens, which one launch serves, against the reference in float64, values and gradients."""

import copy

import pytest
import torch

from fwp_fairseq import ops
from fwp_fairseq.layers import FastWeightAttention
from fwp_fairseq.ops.call import CORRECTING, RULES
from tests import maps
from tests.cuda.cases import DPFP, LIMITS, NORMALIZERS, compare, emulated, make, mask, run
from tests.cuda.test_kernels import bounded
from tests.pairs import covering

pytestmark = [pytest.mark.slow, pytest.mark.needs("native", "cuda")]

LENGTHS = [1, 16, 17, 32, 33, 64, 65, 100, 128]
MAPS = maps.MAPS + [("dpfp", {"nu": nu}) for nu in (2, 4)]
WIDTHS = [(8, 8), (16, 72), (64, 64), (72, 136)]  # d_key, d_value
of_kernels_that_ran = pytest.mark.skipif(emulated is None, reason="only an emulated device knows which kernels ran")
DEFAULTS = dict(causal=True, normalize_features=True, normalize_output=False, return_state=False)


def files(rule: str, x: dict, phi, **options) -> set[str]:
    """The sources whose barriers the kernels of a call come to."""
    with emulated.watched():
        run(rule, x, phi, backend="native", device="cuda", **DEFAULTS | options)
        return {place.split(":")[0] for _, place in emulated.barriers()}


@of_kernels_that_ran
@pytest.mark.parametrize("rule", RULES)
def test_which_kernels_serve(rule):
    x, phi = make(rule, 128, 128, dtype=torch.bfloat16, H=1)
    assert "short.cuh" in files(rule, x, phi)
    for length, options in ((129, {}), (128, {"return_state": True})):
        x, phi = make(rule, length, length, dtype=torch.bfloat16, H=1)
        assert "short.cuh" not in files(rule, x, phi, **options)


@of_kernels_that_ran
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length, nu", [(32, 1), (64, 3), (64, 9)])
def test_one_launch_each_way(rule, length, nu):
    x, phi = make(
        rule, length, length, dtype=torch.bfloat16, H=1, d_key=64, d_value=64, feature_map=("dpfp", {"nu": nu})
    )  # fmt: skip
    assert files(rule, x, phi) <= {"maps.cuh", "short.cuh", "short_forward.cuh", "short_backward.cuh"}


@of_kernels_that_ran
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("dtype, most", [(torch.float16, 2e-3), (torch.bfloat16, 1e-2)], ids=str)
@pytest.mark.parametrize("kind", ["delta", "gated-delta"])
def test_layers_whose_features_have_length_one_take_one_launch_each_way(kind, dtype, most, trains):
    layer, x = FastWeightAttention(kind, 64, 2).to(dtype), torch.randn(1, 40, 64, dtype=dtype)
    exact, _ = copy.deepcopy(layer).double()(x.double())
    with emulated.watched(), torch.set_grad_enabled(trains):
        out, _ = layer.cuda()(x.cuda(), return_state=False)
        if trains:
            out.sum().backward()
        files = {place.split(":")[0] for _, place in emulated.barriers()}
    assert "short.cuh" in files and not files & {"rows.cuh", "forward.cuh", "mma.cuh"}
    difference = out.detach().cpu().double() - exact
    assert difference.square().mean().sqrt() <= most * exact.square().mean().sqrt()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "length, dtypes, widths, normalizer, causal, scale",
    covering(
        [5, 32, 40, 64, 100],
        [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.bfloat16, torch.float16)],
        [(8, 8), (64, 64), (136, 72)], NORMALIZERS, [True, False], [1, 1e-4, 1e4],
    ),
    ids=str,
)  # fmt: skip
def test_features_of_another_type_than_values(rule, length, dtypes, widths, normalizer, causal, scale):
    """Features in float32 may have any magnitude; some of them are of pads, with NaN."""
    features, output = bounded(rule, normalizer)
    dtype, x_dtype = dtypes
    scale = 1 if x_dtype == torch.float16 or (rule in CORRECTING and not features) else scale
    x, _ = make(
        rule, length, length, dtype=dtype, x_dtype=x_dtype, H=1, d_key=widths[0], d_value=widths[1], feature_map=None,
        scale=scale,
    )  # fmt: skip
    pads = mask(1, length) if length > 5 else None
    if pads is not None:
        x["k"].masked_fill_(pads.view(1, length, 1, 1), float("nan"))
    compare(
        rule, x, None, causal=causal, normalize_features=features, normalize_output=output, key_padding_mask=pads,
        looser=2.5,
    )  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "length, dtype, feature_map, widths, normalizer, causal, masked",
    covering(LENGTHS, LIMITS, MAPS, WIDTHS, NORMALIZERS, [True, False], [False, True]),
    ids=str,
)
def test_values_and_gradients(rule, length, dtype, feature_map, widths, normalizer, causal, masked):
    features, output = bounded(rule, normalizer)
    output = output and length > 1  # else the gradient of q is a difference of equal numbers
    x, phi = make(
        rule, length, length, dtype=dtype, H=1, d_key=widths[0], d_value=widths[1], feature_map=feature_map
    )  # fmt: skip
    pads = mask(1, length) if masked and length > 5 else None
    if pads is not None:
        for name in x.keys() - {"q"}:
            x[name].masked_fill_(pads.view(1, length, *[1] * (x[name].dim() - 2)), float("nan"))
    compare(
        rule, x, phi, causal=causal, normalize_features=features, normalize_output=output, key_padding_mask=pads,
        looser=2.5 if length > 1 else 20,  # one key: gradients are differences of nearly equal numbers
    )  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("T, S, normalizer", covering([7, 40, 128], [9, 64, 100], NORMALIZERS[:3]), ids=str)
def test_cross_attention(rule, T, S, normalizer):
    features, output = normalizer
    x, phi = make(rule, T, S, dtype=torch.float16, H=1)
    compare(
        rule, x, phi, causal=False, normalize_features=features, normalize_output=output, key_padding_mask=mask(1, S),
        looser=2,
    )  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length, nu", [(20, 8), (60, 4), (40, 15)], ids=str)
def test_many_features(rule, length, nu):
    d_key = 8 if nu == 15 else 64
    x, phi = make(rule, length, length, dtype=torch.bfloat16, H=1, d_key=d_key, feature_map=("dpfp", {"nu": nu}))
    compare(rule, x, phi, looser=1.5)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("nu, normalizer, both_ways", covering([3, 4, 5, 12], NORMALIZERS, [False, True]), ids=str)
def test_offsets_beyond_two(rule, nu, normalizer, both_ways):
    """Several slabs of features contribute to the gradient of the same x, and the offsets may exceed d_key."""
    features, output = bounded(rule, normalizer)
    x, phi = make(rule, 36, 36, dtype=torch.float16, d_key=8, feature_map=("dpfp", {"nu": nu}))
    options = {"key_padding_mask": mask(1, 36)} | ({"both_ways": True} if both_ways else {})
    compare(rule, x, phi, normalize_features=features, normalize_output=output, looser=2, **options)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("nu, scale", [(3, 1e-4), (3, 1e4), (8, 1e-4), (8, 1e4)])
def test_inputs_of_any_magnitude(rule, nu, scale):
    x, phi = make(rule, 40, 40, dtype=torch.bfloat16, H=1, d_key=24, scale=scale, feature_map=("dpfp", {"nu": nu}))
    x["v"].mul_(scale)
    compare(rule, x, phi, looser=1.5)


@pytest.mark.parametrize("nu", [2, 3, 4, 8, 15])
def test_gradients_of_equal_sign(nu):
    """They add up to the largest sums that are possible, 2 nu products, which stay in the range of halves."""
    x, phi = make("sum", 32, 32, dtype=torch.bfloat16, H=1, d_key=24, feature_map=("dpfp", {"nu": nu}))
    x["q"].fill_(127 / 64), x["k"].fill_(127 / 64), x["v"].fill_(1)
    compare("sum", x, phi, normalize_features=False)


@pytest.mark.skipif(emulated is None, reason="only an emulated device knows how much a launch asks for")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length, kilobytes", [(32, 24), (64, 47), (128, 94)])
def test_shared_memory(rule, length, kilobytes):
    x, phi = make(rule, length, length, dtype=torch.bfloat16, H=1, d_key=64, d_value=64, feature_map=DPFP)
    with torch.no_grad():
        names = [n for n in ("q", "k", "v", "beta", "alpha") if n in x]
        getattr(ops, f"{rule}_rule")(*(x[n].cuda() for n in names), feature_map=phi.cuda(), backend="native")
    phi.to("cpu")
    assert emulated.shared_bytes() <= 1000 * kilobytes + (20 * length if "gated" in rule else 0)


@pytest.mark.parametrize("rule", CORRECTING)
@pytest.mark.parametrize("length", [6, 32, 64, 128])
def test_what_is_written_grows_beyond_halves(rule, length):
    """Equal keys of squared length 3 double what is written with every token. Outputs become NaN, and never wrong."""
    x, _ = make(rule, length, length, dtype=torch.bfloat16, H=1, feature_map=None)
    x["k"][:] = x["q"][:] = 0
    x["k"][..., :3] = x["q"][..., :3] = 1
    x["beta"].fill_(1)
    if "alpha" in x:
        x["alpha"].fill_(1)
    options = DEFAULTS | {"normalize_features": False}
    expected = run(rule, x, None, backend="reference", device="cpu", dtype=torch.float64, **options)["out"]
    out = run(rule, x, None, backend="native", device="cuda", **options)["out"]
    finite = out.isfinite().all(-1)
    errors = (out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert errors[finite].max() <= 0.02 if finite.any() else length > 6
    assert finite.all() == (length == 6)
