"""The compiled operators as operators of torch: their registration, compilation and threads."""

import os
import subprocess

import pytest
import torch

from tests.ops.cases import OPERATORS, make

pytestmark = pytest.mark.needs("native")


def test_second_derivatives_are_refused():
    case = make("sum", "elu", length=3)
    x = case.leaves()
    out, *_ = case.of(x).run("native")
    (gradient,) = torch.autograd.grad(out.sum(), x["q"], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        gradient.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule, compiler", [("delta", "eager"), *((rule, "aot_eager") for rule in ("delta", "gated", "gated_delta"))]
)
def test_compiles_without_a_graph_break(rule, compiler):
    case = make(rule, length=12)

    def run(*tensors):
        return OPERATORS[rule](*tensors, feature_map=case.phi, backend="native")[0].square()

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend=compiler)
    outcomes = []
    for function in (run, compiled):
        y = list(case.leaves().values())
        out = function(*y)
        outcomes.append((out, *torch.autograd.grad(out.sum(), y)))
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", ["delta", "gated", "gated_delta"])
def test_threads_do_not_change_a_bit(rule):
    case = make(rule, length=70, heads=3, d_key=7)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(case.results("native", torch.float32))
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
