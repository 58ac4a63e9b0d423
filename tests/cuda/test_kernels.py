"""The CUDA kernels against the reference in float64, values and gradients: on the shim, and on a GPU if any."""

import ctypes
import itertools

import pytest
import torch
from torch import Tensor

from benchmarks.gate import CUDA
from fwp_fairseq import ops
from tests.cuda import kernels, shim
from tests.maps import CUDA_MAPS, build_map
from tests.pairs import covering

pytestmark = pytest.mark.slow

DEVICES = ["shim", pytest.param("cuda", marks=pytest.mark.needs("native", "cuda"))]

# Root of the mean square error relative to that of the tensor, (outputs, gradients). bfloat16: the result is rounded to
# 8 bits.
LIMITS = {torch.float16: CUDA["float16"], torch.bfloat16: (2.5e-3, 4e-3), torch.float32: CUDA["float32"]}

DPFP = ("dpfp", {"nu": 2})
NORMALIZERS = [(True, False), (False, True), (True, True), (False, False)]
LENGTHS = {16: 13, 32: 32, 64: 50, 128: 71}  # block of tokens: a length that it serves


def surrounded(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Random numbers, laid out as fairseq's (T, B, C), in a larger tensor that is NaN elsewhere."""
    batch, length, heads, width = shape
    around = torch.full((length + 2, batch, heads * width + 16), float("nan"), dtype=dtype)
    x = around[1:-1, :, 8 : 8 + heads * width].unflatten(-1, (heads, width)).transpose(0, 1)
    return x.copy_((scale * torch.randn(shape)).to(dtype))


def make(
    rule: str,
    T: int,
    S: int,
    *,
    dtype,
    d_key=16,
    d_value=16,
    B=1,
    H=2,
    feature_map=DPFP,
    state=False,
    scale=1.0,
    seed=0,
) -> tuple[dict[str, Tensor], object]:
    torch.manual_seed(seed + 1000 * T + S)
    x = {
        "q": surrounded(B, T, H, d_key, dtype=dtype, scale=scale),
        "k": surrounded(B, S, H, d_key, dtype=dtype, scale=scale),
    }
    if feature_map is None:  # normalisers expect features that are not negative
        x = {name: y.abs_() for name, y in x.items()}
    x["v"] = surrounded(B, S, H, d_value, dtype=dtype)
    if rule != "sum":
        x["beta"] = torch.rand(S, B, H).transpose(0, 1)
    if rule == "gated":
        x["beta"] **= 16  # from almost 0 to almost 1, and small enough that writes outlive tiles and segments
    if rule == "gated_delta":
        x["alpha"] = 1 - torch.rand(S, B, H).transpose(0, 1) ** 16
    phi = None if feature_map is None else build_map(feature_map[0], d_key, **feature_map[1]).eval()
    if state:
        d_dot = d_key if phi is None else phi.d_dot
        x["W"], x["z"] = torch.randn(B, H, d_dot, d_value), torch.rand(B, H, d_dot)
    return x, phi


def cotangents(out: Tensor, W: Tensor | None, z: Tensor | None) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(7)
    return [None if y is None else torch.randn(y.shape, generator=generator) for y in (out, W, z)]


def by_autograd(
    rule, x, *, backend, device, dtype, grad_dtype, phi, key_padding_mask, return_state, **options
) -> dict[str, Tensor]:
    x = {n: y.to(device, y.dtype if dtype is None else dtype).requires_grad_() for n, y in x.items()}
    if not options["normalize_output"]:
        x.pop("z", None)
    names = ("q", "k", "v", "beta", "alpha")
    initial = (x["W"], x.get("z")) if "W" in x else None
    key_padding_mask = None if key_padding_mask is None else key_padding_mask.to(device)
    out, final = getattr(ops, f"{rule}_rule")(
        *(x[n] for n in names if n in x), feature_map=phi, key_padding_mask=key_padding_mask, initial_state=initial,
        return_state=return_state, backend=backend, **options,
    )  # fmt: skip
    W, z = (None, None) if final is None else final
    given = cotangents(out, W, z)
    given[0] = given[0].to(grad_dtype)
    loss = sum((y * g.to(y)).sum() for y, g in zip((out, W, z), given, strict=True) if y is not None)
    gradients = torch.autograd.grad(loss, list(x.values()))
    found = {"out": out, "W": W, "z": z} | {f"gradient of {n}": g for n, g in zip(x, gradients, strict=True)}
    return {n: y.detach().cpu() for n, y in found.items() if y is not None}


def by_shim(
    rule, x, *, phi, key_padding_mask, return_state, schedule=0, limit=kernels.SHARED_MEMORY, group=None, **options
) -> dict[str, Tensor]:
    if not options["normalize_output"]:
        x = {n: y for n, y in x.items() if n != "z"}
    given = dict(
        rule=rule, feature_map=phi, key_padding_mask=key_padding_mask, schedule=schedule, limit=limit, **x, **options
    )
    out, W, z = kernels.forward(return_state=return_state, **given)
    grad_out, grad_W, grad_z = cotangents(out, W, z)
    grad_out = surrounded(*out.shape, dtype=out.dtype).copy_(grad_out.to(out.dtype))
    gradients = kernels.backward(grad_out, grad_W=grad_W, grad_z=grad_z, group=group, **given)
    found = {"out": out, "W": W, "z": z} | {f"gradient of {n}": g for n, g in gradients.items()}
    return {n: y for n, y in found.items() if y is not None}


def same_in_both_orders(rule: str, x: dict[str, Tensor], phi, **options) -> None:
    """Asserts that the order of the shim's threads does not matter: a missing barrier makes the two orders differ."""
    options = dict(phi=phi, normalize_features=True, normalize_output=True, eps=1e-6) | options
    first, second = (by_shim(rule, x, schedule=schedule, **options) for schedule in (0, 1))
    for name, y in first.items():
        assert torch.equal(y, second[name]), name


def compare(
    device: str, rule: str, x: dict[str, Tensor], phi, *, causal=True, normalize_features=True, normalize_output=False,
    eps=1e-6, key_padding_mask=None, return_state=False, looser=1.0, limit=kernels.SHARED_MEMORY, group=None,
) -> dict[str, Tensor]:  # fmt: skip
    """Asserts that the kernels agree with the reference; what they found.

    ``limit`` is the shim's shared memory, ``group`` the number of segments in a group of the backward if not its own.
    """
    dtype = x["q"].dtype
    options = dict(
        causal=causal, normalize_features=normalize_features, normalize_output=normalize_output, eps=eps, phi=phi,
        key_padding_mask=key_padding_mask, return_state=return_state,
    )  # fmt: skip
    expected = by_autograd(rule, x, backend="reference", device="cpu", dtype=torch.float64, grad_dtype=dtype, **options)
    if device == "shim":
        found = by_shim(rule, x, limit=limit, group=group, **options)
    else:
        moved = None if phi is None else phi.to(device)
        on_device = options | {"phi": moved}
        found = by_autograd(rule, x, backend="native", device=device, dtype=None, grad_dtype=dtype, **on_device)
        if phi is not None:
            phi.to("cpu")
    assert found.keys() == expected.keys()
    for name, a in expected.items():
        b = found[name].double()
        limit = looser * LIMITS[dtype]["gradient" in name] * max(a.square().mean().sqrt().item(), 1e-3)
        error = (a - b).square().mean().sqrt().item()
        assert error <= limit, f"{name}: error {error:.2e}, at most {limit:.2e}"
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(LIMITS), ids=str)
@pytest.mark.parametrize("rule", ["sum", "delta"])
@pytest.mark.parametrize("block", list(LENGTHS))
def test_every_instance(block, rule, dtype, device):
    """Block of tokens, rule, operands, kind; the larger blocks also with states on both ends."""
    length = LENGTHS[block]
    for feature_map in (DPFP, ("favor", {"m": 20})):
        for state in (False, True) if block in (64, 128) else (False,):
            x, phi = make(rule, length, length, dtype=dtype, state=state, H=1, feature_map=feature_map)
            compare(device, rule, x, phi, normalize_output=state, return_state=state)


@pytest.mark.parametrize("rule, longest", [("sum", 64), ("delta", 32), ("gated", 32), ("gated_delta", 0)])
def test_short_backwards_have_a_team_for_queries_and_one_for_keys(rule, longest):
    """Twice the warps of a block of one team, each of which makes at most four fifths of the products."""
    for length in (16, 32, 64, 128):
        x, phi = make(rule, length, length, dtype=torch.bfloat16, H=1, d_key=64, d_value=64)
        options = dict(rule=rule, feature_map=phi, causal=True, normalize_features=True, normalize_output=False)
        with shim.counted(kernels.kernels()) as launches:
            kernels.backward(torch.randn(1, length, 1, 64).bfloat16(), **x, **options)
        last, tiles = launches[-1], min(length, 64 if len(launches) > 1 else 128) // 16
        assert (len(launches) > 1) == (length > 64 and rule == "gated_delta")
        teams = 2 if length <= longest else 1
        assert last.threads == 32 * tiles * teams
        share = last.most_products * tiles * last.blocks / last.products  # of one team's average
        assert share <= 0.8 if teams == 2 else share >= 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "rule, length, dtype, causal, normalizer, rounding",
    covering(["sum", "delta", "gated"], [9, 16, 17, 32, 49, 64], LIMITS, [True, False], NORMALIZERS, shim.ROUNDINGS),
    ids=str,
)
def test_short_backwards(rule, length, dtype, causal, normalizer, rounding, device):
    """By two teams of warps where they have them: pads, more queries than keys and fewer, several blocks of columns."""
    features, output = normalizer
    for T, S in ((length, length),) if causal else ((length, length), (length, 7), (7, length)):
        x, phi = make(rule, T, S, dtype=dtype, d_value=70)
        pads = torch.zeros(1, S, dtype=torch.bool)
        pads[0, :2] = pads[0, -2:] = True
        with shim.rounding(kernels.kernels(), rounding):
            compare(
                device, rule, x, phi, causal=causal, normalize_features=features, normalize_output=output,
                key_padding_mask=pads, looser=2,
            )  # fmt: skip


@pytest.mark.parametrize("device", ["shim"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("rule", ["sum", "delta"])
def test_favor_in_slabs(rule, dtype, device):
    """All features at once where a block has room for them, else some at a time, with the same result."""
    options = dict(rule=rule, causal=True, normalize_features=True, normalize_output=False)
    for length, room in ((20, 40), (40, 80), (70, 140)):
        x, phi = make(rule, length, length, dtype=dtype, d_key=24, H=1, feature_map=("favor", {"m": 120}))
        call = kernels.make_call(**x, feature_map=phi, **options)
        for limit in (room * 1024, kernels.SHARED_MEMORY):
            # Float32 operands take twice the room; and so many tokens' gradients are too large beside them.
            for backward, longest in ((False, 128), (True, 64)):
                expected = dtype == torch.float16 and limit == kernels.SHARED_MEMORY and length <= longest
                assert kernels.holds_all_features(call, backward=backward, limit=limit) == expected
            compare(device, rule, x, phi, limit=limit, looser=2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_favors_exponents_are_clipped(dtype, device):
    """A row of the projection, long enough, as input: its exponent exceeds the largest that counts."""
    x, phi = make("sum", 12, 12, dtype=dtype, d_key=128, H=1, feature_map=("favor", {"m": 5}))
    for name, token in (("q", 3), ("k", 5), ("k", 7)):
        x[name][:, token] = (phi.projection[token % 5] / phi.scale).to(dtype)
    exponents = (x["k"].double() * phi.scale) @ phi.projection.double().T
    exponents -= (x["k"].double() * phi.scale).square().sum(-1, keepdim=True) / 2
    assert exponents.max() > 40
    compare(device, "sum", x, phi, looser=3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("feature_map", CUDA_MAPS, ids=str)
@pytest.mark.parametrize("rule", ["sum", "delta"])
def test_maps_normalizers_masks_and_sites(rule, feature_map, dtype, device):
    sites = [(True, 19, 19), (False, 20, 9), (False, 7, 18)]
    # With few coordinates all DPFP features of a key may be tiny; the gradient of normalised ones is their inverse.
    d_key = 7 if dtype == torch.float32 else 20
    normalizers = NORMALIZERS if rule == "sum" else [n for n in NORMALIZERS if any(n)]  # else the delta rule diverges
    for number, ((causal, T, S), (features, output)) in enumerate(itertools.product(sites, normalizers)):
        pads = torch.zeros(2, S, dtype=torch.bool)
        pads[0, :2] = pads[0, -3:] = True  # both sides, and a row without a single key
        pads[1] = number % 4 == 1
        x, phi = make(rule, T, S, dtype=dtype, d_key=d_key, d_value=10, B=2, H=1, feature_map=feature_map, seed=number)
        compare(
            device, rule, x, phi, causal=causal, normalize_features=features, normalize_output=output,
            key_padding_mask=pads if number % 2 else None, looser=3.0,  # few numbers, some cancel
        )  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rule", ["sum", "delta"])
@pytest.mark.parametrize("feature_map", [DPFP, ("elu", {}), ("favor", {"m": 9}), None], ids=str)
def test_states(feature_map, rule, dtype, device):
    for number, (causal, T, S) in enumerate([(True, 17, 17), (False, 3, 18)]):
        pads = torch.zeros(1, S, dtype=torch.bool)
        pads[0, 3:5] = True
        for output in (False, True):
            x, phi = make(rule, T, S, dtype=dtype, H=1, feature_map=feature_map, state=True, seed=number, d_value=9)
            compare(
                device,
                rule,
                x,
                phi,
                causal=causal,
                normalize_output=output,
                key_padding_mask=pads,
                return_state=True,
                looser=2,
            )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "d_key, d_value, feature_map",
    [
        (64, 64, ("dpfp", {"nu": 2})),
        (64, 64, ("dpfp", {"nu": 4})),
        (32, 32, ("dpfp", {"nu": 4})),
        (128, 128, ("dpfp", {"nu": 1})),
        (128, 130, ("elu", {})),
        (160, 64, None),
        (64, 64, ("favor", {"m": 70})),
        (64, 64, ("favor", {"m": 128})),
        (130, 16, ("favor", {"m": 33})),  # inputs in three portions
        (80, 8, ("favor", {"m": 16})),
        (1, 1, ("dpfp", {"nu": 1})),
        (8, 40, ("dpfp", {"nu": 15})),  # rows come round more than once
        (48, 48, ("dpfp", {"nu": 7})),  # the most offsets for which a backward makes each gradient of a feature once
        (32, 32, ("dpfp", {"nu": 9})),
        (24, 24, ("dpfp", {"nu": 3})),  # half a tile of rows, aligned
        (12, 33, ("dpfp", {"nu": 5})),  # and not aligned
        (72, 96, ("dpfp", {"nu": 2})),  # inputs in two portions
        (200, 16, ("elu", {})),
    ],
    ids=str,
)
def test_widths(d_key, d_value, feature_map, device):
    for rule, dtype, states in (
        ("sum", torch.float16, (False,)),
        ("delta", torch.float16, (False, True)),
        # With a state a block has 64 tokens; of such wide float32 ones it cannot hold all that the backward needs.
        ("delta", torch.float32, (d_key < 100,)),
    ):
        looser = 3.0 if d_key == 1 or d_key * d_value == 8 * 40 else 1.0  # few inputs
        for state in states:
            widths = dict(d_key=d_key, d_value=d_value, feature_map=feature_map)
            x, phi = make(rule, 18, 18, dtype=dtype, H=1, state=state, **widths)
            compare(device, rule, x, phi, looser=looser, return_state=state)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", ["sum", "delta"])
def test_inputs_of_any_magnitude(rule, device):
    """fp16 operands must not overflow or vanish: inputs are scaled by powers of two on the way."""
    for scale in (1e-6, 1e5):
        x, phi = make(rule, 20, 20, dtype=torch.bfloat16, scale=scale)
        compare(device, rule, x, phi, eps=0.0)
    x, phi = make(rule, 20, 20, dtype=torch.bfloat16)
    x["v"].mul_(1e6)
    compare(device, rule, x, phi)
    x, phi = make(rule, 20, 20, dtype=torch.bfloat16, feature_map=("favor", {"m": 9}), scale=6.0)
    compare(device, rule, x, phi, eps=0.0, looser=3)  # large exponents


@pytest.mark.parametrize("normalize_features", [True, False])
@pytest.mark.parametrize("dtype, scale", [(torch.float16, 1e4), (torch.bfloat16, 1e20), (torch.float32, 1e5)], ids=str)
def test_favor_vanishes_for_large_inputs(dtype, scale, normalize_features):
    """Features of exp(-|x'|^2 / 2) are 0 in float32, not NaN."""
    x, phi = make("sum", 20, 20, dtype=dtype, H=1, d_key=64, feature_map=("favor", {"m": 9}), scale=scale)
    options = dict(
        causal=True, normalize_features=normalize_features, normalize_output=False, eps=1e-6, phi=phi,
        key_padding_mask=None,
        return_state=False,
    )  # fmt: skip
    for name, y in by_shim("sum", x, **options).items():
        assert not y.any(), name  # NaN counts


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("feature_map", [DPFP, ("favor", {"m": 9})], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_what_is_not_a_number_stays_so(dtype, feature_map, poison):
    x, phi = make("sum", 20, 20, dtype=dtype, H=1, feature_map=feature_map)
    x["q"][0, 5] = poison
    x["k"][0, 9, 0, 3] = poison
    options = dict(
        causal=True, normalize_features=True, normalize_output=False, eps=1e-6, phi=phi,
        key_padding_mask=None,
        return_state=False,
    )  # fmt: skip
    expected = by_autograd("sum", x, backend="reference", device="cpu", dtype=None, grad_dtype=dtype, **options)
    for name, y in by_shim("sum", x, **options).items():
        missed = expected[name].isnan() & ~y.isnan()
        assert expected[name].isnan().any() and not missed.any(), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_zero_denominators_and_beta(dtype, device):
    for rule, (features, output) in itertools.product(("sum", "delta"), NORMALIZERS[:3]):
        x, _ = make(rule, 18, 18, dtype=dtype, feature_map=None, d_key=6)
        x["q"][:, 2] = 0
        x["k"][:, :3] = 0
        if rule == "delta":
            x["beta"][:, 4:6] = 0
        found = compare(device, rule, x, None, normalize_features=features, normalize_output=output, eps=0.0, looser=3)
        assert all(y.isfinite().all() for y in found.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rule", ["sum", "delta"])
def test_the_order_of_threads_does_not_matter(rule, dtype):
    calls = ((30, False, DPFP), (40, False, DPFP), (40, True, DPFP), (40, True, ("favor", {"m": 70})))
    for length, state, feature_map in calls:
        pads = torch.zeros(1, length, dtype=torch.bool)
        pads[0, length - 10 :] = True
        x, phi = make(rule, length, length, dtype=dtype, H=1, feature_map=feature_map, state=state, d_value=70)
        same_in_both_orders(rule, x, phi, causal=True, key_padding_mask=pads, return_state=state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rule", ["sum", "delta"])
@pytest.mark.parametrize("causal", [True, False])
def test_what_padded_keys_hold_reaches_nothing(rule, causal, dtype):
    x, phi = make(rule, 20, 20, dtype=dtype)
    pads = torch.zeros(1, 20, dtype=torch.bool)
    pads[0, :2] = pads[0, 7] = pads[0, 15:] = True
    options = dict(
        causal=causal, normalize_features=True, normalize_output=True, eps=1e-6, phi=phi, key_padding_mask=pads,
        return_state=True,
    )  # fmt: skip
    clean = by_shim(rule, x, **options)
    for poison in (float("nan"), float("inf")):
        dirty = {n: y.masked_fill(pads.view(1, 20, *[1] * (y.dim() - 2)), poison) for n, y in x.items() if n != "q"}
        found = by_shim(rule, x | dirty, **options)
        for name, y in clean.items():
            assert torch.equal(found[name], y), name
        for name in ("k", "v"):
            assert (found[f"gradient of {name}"][pads] == 0).all()


def test_an_unknown_rule_is_an_error():
    x, phi = make("sum", 5, 5, dtype=torch.float16, H=1)
    call = kernels.make_call(
        **x, rule="sum", feature_map=phi, causal=True, normalize_features=True, normalize_output=False
    )
    call.rule, call.segment = len(kernels.RULES), 64
    for launched in (kernels.kernels().fwp_shim_forward, kernels.kernels().fwp_shim_backward):
        assert launched(ctypes.byref(call), 0) == b"the call's rule is unknown"
