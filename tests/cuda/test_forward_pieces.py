"""Long causal forwards in pieces (csrc/cuda/kernels/launch_forward.h): on the shim, and on a GPU if any."""

import itertools

import pytest
import torch
from torch import Tensor

from fwp_fairseq import ops
from tests.cuda import kernels, shim
from tests.cuda.test_kernels import DEVICES, DPFP, LIMITS, make
from tests.cuda.test_segments import mask
from tests.pairs import covering

pytestmark = pytest.mark.slow

RULES = ["sum", "delta", "gated", "gated_delta"]
MULTIPROCESSORS = 132  # of an H100
# Four pieces and more, the last one whole, almost whole, almost empty.
LENGTHS = [193, 255, 256, 300]
WIDTHS = [
    (16, 16, DPFP),
    (
        40,
        70,
        ("dpfp", {"nu": 3}),
    ),  # base rows that are no multiple of 16, three slices of columns, odd rows of the last
    (64, 33, None),
    (72, 64, ("elu", {})),
]


def options_of(phi, output: bool, **given) -> dict:
    return dict(feature_map=phi, causal=True, normalize_features=True, normalize_output=output, **given)


def launches_of(x: dict[str, Tensor], **options) -> list[shim.Launch]:
    with shim.counted(kernels.kernels()) as launches:
        kernels.forward(**x, **options)
    return launches


def reference(rule: str, x: dict[str, Tensor], output: bool, **options) -> dict[str, Tensor | None]:
    x = {name: y.double() for name, y in x.items()}
    given = (x[name] for name in ("q", "k", "v", "beta", "alpha") if name in x)
    initial = (x["W"], x["z"] if output else None) if "W" in x else None
    out, final = getattr(ops, f"{rule}_rule")(*given, initial_state=initial, backend="reference", **options)
    return {"out": out} | ({} if final is None else {"W": final.W, "z": final.z})


def on_device(device: str, rule: str, x: dict[str, Tensor], output: bool, return_state: bool, **options) -> dict:
    """What the kernels find, and that they did so in pieces."""
    if device == "shim":
        given = x if output else {name: y for name, y in x.items() if name != "z"}
        with shim.counted(kernels.kernels()) as launches:
            out, W, z = kernels.forward(
                **given, rule=rule, return_state=return_state, multiprocessors=MULTIPROCESSORS, **options
            )
        assert launches[-1].kernel == "read_kernel"
    else:
        phi = options.pop("feature_map")
        x = {name: y.to(device) for name, y in x.items()}
        given = (x[name] for name in ("q", "k", "v", "beta", "alpha") if name in x)
        initial = (x["W"], x["z"] if output else None) if "W" in x else None
        pads = options.pop("key_padding_mask")
        out, final = getattr(ops, f"{rule}_rule")(
            *given, initial_state=initial, backend="native", feature_map=None if phi is None else phi.to(device),
            key_padding_mask=None if pads is None else pads.to(device), return_state=return_state, **options,
        )  # fmt: skip
        W, z = (None, None) if final is None else final
    return {name: y.cpu() for name, y in {"out": out, "W": W, "z": z}.items() if y is not None}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "rule, output, dtype, length, width, masked, states, rounding",
    [
        (rule, output, *rest)
        for (rule, output), *rest in covering(
            [*((rule, False) for rule in RULES), ("sum", True), ("gated", True)],
            LIMITS,
            LENGTHS,
            WIDTHS,
            [False, True],
            ["none", "out", "in and out"],
            shim.ROUNDINGS,
        )
    ],
    ids=str,
)
def test_agrees_with_the_reference(rule, output, dtype, length, width, masked, states, rounding, device):
    """Outputs and the last state, with two batch rows."""
    d_key, d_value, feature_map = width
    x, phi = make(
        rule, length, length, dtype=dtype, B=2, H=1, d_key=d_key, d_value=d_value, feature_map=feature_map,
        state=states == "in and out",
    )  # fmt: skip
    options = options_of(phi, output, key_padding_mask=mask(2, length) if masked else None)
    options["return_state"] = states != "none"
    expected = reference(rule, x, output, **options)
    with shim.rounding(kernels.kernels(), rounding):
        found = on_device(device, rule, x, output, **options)
    assert found.keys() == {name for name, y in expected.items() if y is not None}
    for name, y in found.items():
        a = expected[name]
        error, limit = (a - y.double()).square().mean().sqrt(), 2 * LIMITS[dtype][0] * a.square().mean().sqrt()
        assert error <= limit, f"{name}: error {error:.2e}, at most {limit:.2e}"


@pytest.mark.parametrize("rule, dtype", list(itertools.product(["sum", "gated"], LIMITS)), ids=str)
def test_gives_the_same_bits_where_no_system_is_solved(rule, dtype):
    x, phi = make(rule, 300, 300, dtype=dtype, d_value=40, state=True)
    options = options_of(phi, True, rule=rule, key_padding_mask=mask(1, 300))
    one, pieces = (kernels.forward(**x, **options, multiprocessors=count) for count in (0, MULTIPROCESSORS))
    for a, b in zip(one, pieces, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_threads_does_not_matter(rule):
    for dtype in (torch.float16, torch.float32):
        x, phi = make(rule, 200, 200, dtype=dtype, d_value=40, H=1)
        options = options_of(phi, False, rule=rule, multiprocessors=MULTIPROCESSORS)
        first, second = (kernels.forward(**x, **options, schedule=schedule) for schedule in (0, 1))
        assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


@pytest.mark.parametrize("rule", RULES)
def test_keys_that_are_not_there_change_nothing(rule):
    """Numbers of pads are not read, in whole pieces of them neither."""
    x, phi = make(rule, 260, 260, dtype=torch.float16, H=1)
    pads = torch.zeros(1, 260, dtype=torch.bool)
    pads[0, 50:140] = pads[0, 250:] = True
    options = options_of(phi, False, rule=rule, key_padding_mask=pads, multiprocessors=MULTIPROCESSORS)
    dirty = {n: y.masked_fill(pads.view(1, 260, *[1] * (y.dim() - 2)), float("nan")) for n, y in x.items() if n != "q"}
    for a, b in zip(kernels.forward(**x, **options), kernels.forward(**x | dirty, **options), strict=True):
        assert a is b is None or torch.equal(a, b)


@pytest.mark.parametrize("rule", RULES)
def test_only_the_walk_grows_with_the_length(rule):
    most: dict[str, list[int]] = {}
    for length in (256, 512):
        x, phi = make(rule, length, length, dtype=torch.bfloat16, H=1, d_value=64)
        options = options_of(phi, False, rule=rule, return_state=False)
        [one] = launches_of(x, **options)
        pieces = launches_of(x, **options, multiprocessors=MULTIPROCESSORS)
        assert [launch.kernel for launch in pieces] == ["keys_kernel", "write_kernel", "read_kernel"]
        blocks = {"keys_kernel": length // 64, "write_kernel": 2, "read_kernel": 2 * length // 64}
        assert all(launch.blocks == blocks[launch.kernel] for launch in pieces)
        for launch in (*pieces, one):
            most.setdefault(launch.kernel, []).append(launch.most_products)
    for kernel in ("keys_kernel", "read_kernel"):
        assert most[kernel][0] == most[kernel][1] > 0
    assert most["forward_kernel"][1] > most["write_kernel"][1] + most["read_kernel"][1]


def test_which_calls_are_done_in_pieces():
    """Those of few heads with many positions, as launch_forward.h says."""

    def is_in_pieces(rule="sum", length=256, batch=1, heads=33, causal=True, output=False, d_value=64, **given) -> bool:
        q = torch.empty(1, 1, 1, 64, dtype=torch.float16)
        strengths = [torch.empty(1, 1, 1)] * {"sum": 0, "gated_delta": 2}.get(rule, 1)
        phi = given.pop("phi", make(rule, 1, 1, dtype=torch.float16, d_key=64)[1])
        call = kernels.make_call(q, q, q, *strengths, rule=rule, **options_of(phi, output) | {"causal": causal})
        call.batch, call.heads, call.targets, call.sources, call.d_value = batch, heads, length, length, d_value
        kernels.segmented(call, backward=False, limit=given.pop("limit", kernels.SHARED_MEMORY))
        return kernels.forward_workspace(call, MULTIPROCESSORS) > 0

    for rule in RULES:
        assert is_in_pieces(rule)
        assert not is_in_pieces(rule, heads=34)
        assert not is_in_pieces(rule, batch=2)
        assert not is_in_pieces(rule, length=192)
        assert not is_in_pieces(rule, causal=False)
        assert not is_in_pieces(rule, limit=0)
        assert is_in_pieces(rule, heads=66, d_value=32)
        assert is_in_pieces(rule, output=True) == (not rule.endswith("delta"))
        assert is_in_pieces(rule, length=1 << 17, heads=1) and not is_in_pieces(rule, length=1 << 21, heads=1)
