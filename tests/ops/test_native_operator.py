"""The compiled operators as operators of torch: their registration, compilation, threads and instruction sets."""

import os
import subprocess

import pytest
import torch
from torch import Tensor

from fwp_fairseq import ops
from fwp_fairseq.ops import RULES
from tests.ops.cases import OPCHECKS
from tests.ops.native_calls import build, call, make_inputs, results
from tests.pairs import covering

pytestmark = pytest.mark.needs("native")


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


@pytest.mark.slow
def test_an_unknown_capability_is_refused(forked_python):
    command = [forked_python.program, "-c", "import fwp_fairseq.ops, torch; torch.ops.fwp.cpu_capability()"]
    environment = os.environ | {"FWP_CPU_CAPABILITY": "sse9"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    message = "FWP_CPU_CAPABILITY is sse9, expected default, avx2 or avx512"
    assert run.returncode != 0 and message in run.stderr
