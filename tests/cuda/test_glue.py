"""From torch's tensors to the CUDA kernels and back: layouts, empty sizes, types, fake kernels, and what is refused."""

import pytest
import torch
from torch import Tensor

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import build_feature_map, unit_rows
from fwp_fairseq.ops.call import RULES
from tests.cuda.cases import LIMITS, OPCHECKS, assert_near, compare, make, mask, with_gradients
from tests.pairs import covering

pytestmark = pytest.mark.needs("native", "cuda")

HALF = torch.bfloat16


def turned(x: Tensor) -> Tensor:
    """The same numbers with the last dimension strided."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def shifted(x: Tensor) -> Tensor:
    """The same numbers, contiguous, from an address on that no wide load may take."""
    return x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x)


def inner(x: Tensor) -> Tensor:
    """The same numbers among others, time first, as fairseq has it."""
    around = torch.full([n + 3 for n in x.shape], float("nan")).to(x.device, x.dtype).transpose(0, 1).contiguous()
    found = around.transpose(0, 1)[tuple(slice(1, 1 + n) for n in x.shape)]
    return found.copy_(x)


LAYOUTS = {"contiguous": Tensor.contiguous, "turned": turned, "shifted": shifted, "inner": inner}


@pytest.mark.parametrize("rule, layout, length", covering(RULES, LAYOUTS, [20, 130]))
def test_layouts(rule, layout, length):
    """Of every input, state and mask, and of what comes in for the backward."""
    x, phi = make(rule, length, length, dtype=HALF, B=2, H=2, d_key=8, state=True)
    compare(rule, x, phi, key_padding_mask=mask(2, length), layout=LAYOUTS[layout], normalize_output=True, looser=2)


@pytest.mark.parametrize("rule, layout, length, dtype", covering(RULES[1:], LAYOUTS, [20, 130, 200], LIMITS), ids=str)
def test_half_of_the_heads_from_the_last_token_on(rule, layout, length, dtype):
    x, phi = make(rule, length, length, dtype=dtype, B=2, H=4, d_key=8)
    compare(
        rule, x, phi, key_padding_mask=mask(2, length), layout=LAYOUTS[layout], normalize_output=True, both_ways=True,
        looser=2,
    )  # fmt: skip


def test_outputs_have_the_order_of_dimensions_of_their_inputs():
    """fairseq's (T, B, C) goes on as a view, gradients too."""
    x, _ = make("delta", 20, 20, dtype=HALF, B=3, feature_map=("elu", {}))
    for change in (lambda y: y.transpose(0, 1).contiguous().transpose(0, 1), Tensor.contiguous):
        y = {name: change(z).cuda().requires_grad_() for name, z in x.items()}
        out, _ = ops.delta_rule(*y.values(), feature_map=build_feature_map("elu", 16), backend="native")
        gradients = torch.autograd.grad(out.float().square().sum(), list(y.values()))
        for a, b in zip((out, *gradients), (y["q"], *y.values()), strict=True):
            assert a.stride() == b.stride()


@pytest.mark.parametrize("B, T, S", [(0, 5, 5), (2, 0, 0), (2, 0, 5), (2, 5, 0), (2, 0, 140), (2, 140, 0)])
@pytest.mark.parametrize("rule", RULES)
def test_nothing_to_read_or_to_write(rule, B, T, S):
    x, phi = make(rule, T, S, dtype=HALF, B=B, d_key=8, state=True)
    pads = torch.zeros(B, S, dtype=torch.bool)
    compare(rule, x, phi, causal=T == S, normalize_output=True, return_state=True, key_padding_mask=pads, looser=2)


@pytest.mark.parametrize("rule", RULES)
def test_gradients_of_the_state_alone(rule):
    """Queries are none, or nothing is asked of what they read."""
    x, phi = make(rule, 20, 20, dtype=torch.float16, d_key=8)

    def found(backend, device, dtype=None):
        y = {name: z.to(device, dtype or z.dtype).requires_grad_() for name, z in x.items()}
        options = dict(feature_map=phi.to(device), backend=backend, normalize_output=False, return_state=True)
        _, state = getattr(ops, f"{rule}_rule")(*y.values(), **options)
        return with_gradients({"W": state.W}, y)

    expected = found("reference", "cpu", torch.float64)
    assert_near(found("native", "cuda"), expected, LIMITS[torch.float16], looser=2)


@pytest.mark.parametrize("q, beta", [(torch.float16, HALF), (torch.float16, torch.float32), (torch.float32, HALF)])
def test_types_may_differ(q, beta):
    """beta goes on in float32, and so do q and k where they differ."""
    x, phi = make("delta", 20, 20, dtype=torch.float16)
    x["q"], x["beta"] = x["q"].to(q), x["beta"].to(beta)
    exact, _ = ops.delta_rule(*(y.double() for y in x.values()), feature_map=phi, backend="reference")
    out, _ = ops.delta_rule(*(y.cuda() for y in x.values()), feature_map=phi.to("cuda"), backend="native")
    assert out.dtype == torch.float16
    error = (out.cpu().double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error <= LIMITS[torch.float16][0]


def raw(rule: str, dtype=HALF, state=False, gradient=False, /, **changes) -> dict[str, object]:
    """Arguments of ``fwp::fast_weights``, in its order."""
    x, _ = make(rule, 5, 5, dtype=dtype, B=2, d_key=7, d_value=5, state=state)
    x = {name: y.cuda().requires_grad_(gradient) for name, y in x.items()}
    arguments = dict(
        q=x["q"], k=x["k"], v=x["v"], beta=x.get("beta"), alpha=x.get("alpha"), key_padding_mask=None,
        W=x.get("W"), z=x.get("z"), projection=None, rule=rule, map="dpfp", d_dot=28,
        causal=True, both_ways=False, features=True, output=state, eps=1e-6, return_state=True,
    )  # fmt: skip
    assert changes.keys() <= arguments.keys()
    return arguments | changes


@pytest.mark.parametrize("rule, state, dtype, check", covering(RULES, [False, True], LIMITS, OPCHECKS), ids=str)
def test_opcheck(rule, state, dtype, check):
    operators = torch.ops.fwp.fast_weights.default, torch.ops.fwp.fast_weights_backward.default
    torch.library.opcheck(operators[0], tuple(raw(rule, dtype, state, True).values()), test_utils=check)
    *inputs, _ = raw(rule, dtype, state).values()
    gradients = [torch.ones(2, 5, 2, 5, device="cuda", dtype=dtype), None, None]
    if state:
        gradients[1:] = [torch.ones_like(inputs[6]), torch.ones_like(inputs[7])]
    torch.library.opcheck(operators[1], (*gradients, *inputs), test_utils=check)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rule": "gate"}, "rule is gate, expected sum, delta, gated or gated_delta"),
        ({"both_ways": True}, "both_ways is true with a state, expected false on CUDA"),
        ({"v": torch.zeros(2, 4, 2, 5, dtype=HALF)}, r"v is of shape \[2, 4, 2, 5\], expected \[2, 5, 2, 5\]"),
        ({"k": torch.zeros(2, 5, 2, 7, dtype=HALF), "here": "k"}, "k is on .*, expected "),
        (
            {"key_padding_mask": torch.zeros(2, 5, dtype=torch.bool), "here": "key_padding_mask"},
            "key_padding_mask is on .*, expected ",
        ),
        ({"W": torch.zeros(2, 2, 28, 5, dtype=HALF)}, "initial_W is of type BFloat16, expected Float"),
    ],
    ids=str,
)
def test_the_operator_names_what_is_wrong(changes, message):
    """Some of what tests/ops/test_boundary.py tries on the CPU, whose checks these are."""
    here = changes.get("here")
    changes = {name: y.cuda() if isinstance(y, Tensor) and name != here else y for name, y in changes.items()}
    changes.pop("here", None)
    with pytest.raises(ValueError, match=f"fwp::fast_weights: .*{message}"):
        torch.ops.fwp.fast_weights(*raw("delta", **changes).values())


def test_double_is_refused():
    with pytest.raises(ValueError, match="q is of type Double, expected Half, BFloat16 or Float on CUDA"):
        torch.ops.fwp.fast_weights(*raw("delta", torch.float64).values())


def test_values_in_float32_are_refused():
    with pytest.raises(ValueError, match="v is of type Float, expected Half or BFloat16 on CUDA"):
        torch.ops.fwp.fast_weights(*raw("delta", torch.float32).values())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"major": 7, "minor": 5}, r"need compute capability 8.0 \(Ampere\), this device has 7.5"),
        ({"shared_memory": 2048}, r"need \d+ bytes of shared memory a block, this device has 2048"),
        (
            {"major": 13, "missing": "no kernel image is available for execution on the device"},
            r"not compiled for this device, of compute capability 13.0 \(no kernel image",
        ),
    ],
)
def test_a_device_that_cannot_serve_a_call_is_refused(changes, message, device):
    """By rules and decoding; one that can serve no call, by recurrences and functions of rows too."""
    device(**changes)
    x, of_rows = (
        {name: y.cuda() for name, y in make("sum", 5, 5, dtype=HALF)[0].items()},
        "shared_memory" not in changes,
    )
    rows = x["q"].float()
    calls = [
        lambda: ops.sum_rule(*x.values(), backend="native"),
        lambda: ops.Decoding("sum", None, True, False, backend="native").serves(x["k"]),
        *([lambda: ops.recur(rows, rows, rows, rows[..., 0], backend="native")] if of_rows else []),
    ]
    for call in calls:
        with pytest.raises(NotImplementedError, match=message):
            call()
    for state in (False, True):
        assert ops.sum_rule(*x.values(), return_state=state)[0].isfinite().all()
    assert ops.recur(rows, rows, rows, rows[..., 0])[0].isfinite().all()
    assert unit_rows.to_length_one(rows, 0.1).isfinite().all()
    assert bool(unit_rows.to_length_one.backends["native"].unsupported_reasons(rows)) == of_rows
    if of_rows:
        with pytest.raises(ValueError, match=message):
            torch.ops.fwp.to_length_one(rows, 0.1)
        with pytest.raises(ValueError, match=message):
            torch.ops.fwp.recur(rows, rows, rows, rows[..., 0], None, None, None)


@pytest.mark.parametrize("rule", RULES)
def test_99_kilobytes_of_shared_memory_are_enough(rule, device):
    device(8, 9, shared_memory=99 * 1024)
    for length, state, feature_map in ((60, False, ("dpfp", {"nu": 4})), (140, True, ("favor", {"m": 256}))):
        x, phi = make(rule, length, length, dtype=HALF, H=1, d_key=128, d_value=64, feature_map=feature_map)
        compare(rule, x, phi, looser=2, normalize_output=True, return_state=state)


def test_single_precision_is_for_pytorch():
    x, phi = make("delta", 5, 5, dtype=HALF)
    x = {name: y.float().cuda() for name, y in x.items()}
    with pytest.raises(NotImplementedError, match=r"torch\.float16 and torch\.bfloat16, not in torch\.float32"):
        ops.delta_rule(*x.values(), feature_map=phi.to("cuda"), backend="native")
    assert ops.delta_rule(*x.values(), feature_map=phi.to("cuda"))[0].isfinite().all()


def test_heads_in_groups(device):
    """More heads than fill the device: they share workspace, one group after the other."""
    device(multiprocessors=1)
    x, phi = make("delta", 60, 60, dtype=HALF, B=8, H=9, d_key=64, d_value=8, feature_map=("dpfp", {"nu": 8}))
    compare("delta", x, phi, looser=2)


@pytest.mark.parametrize("multiprocessors", [1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_walks_of_64_and_32_columns(rule, multiprocessors, device):
    """A device with more of them has walks of 16 for so few heads."""
    device(multiprocessors=multiprocessors)
    x, phi = make(rule, 140, 140, dtype=torch.bfloat16, H=1, d_key=20, d_value=70, state=True)
    compare(rule, x, phi, looser=2, normalize_output=True, return_state=True)


@pytest.mark.parametrize("d_dot", [6336, 6400])
def test_rows_beyond_shared_memory_are_refused(d_dot, device):
    """The forward pass of rows takes the most of all launches: 4 floats a feature, and 16."""
    device(8, 9, shared_memory=4 * (4 * d_dot + 16) - 4)
    assert "shared memory" in torch.ops.fwp.cuda_refusal(0, "sum", d_dot, d_dot)
    device(8, 9, shared_memory=4 * (4 * d_dot + 16))
    assert not torch.ops.fwp.cuda_refusal(0, "sum", d_dot, d_dot)
