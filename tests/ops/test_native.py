"""The compiled operators against the reference in float64: values, gradients and layouts, on every instruction set."""

import itertools
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fwp_fairseq.ops import RULES, sum_rule
from fwp_fairseq.ops.call import CORRECTING
from tests.ops.cases import MAPS, MASKS, NORMALIZERS, Case, make
from tests.ops.instruction_sets import on_each
from tests.pairs import covering
from tests.tolerances import LARGEST, Tolerance

pytestmark = pytest.mark.needs("native")

LENGTHS = [0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200]
# Relative to the largest value of the tensor. float64: only the order of additions differs.
TOLERANCE = {torch.float64: Tolerance(1e-10, 1e-10), torch.float32: LARGEST["float32"]}


def compare(case: Case, dtype=torch.float64, **options) -> None:
    """The kernels of every instruction set against the reference."""
    expected = case.results("reference", torch.float64, **options)
    for instructions, found in on_each(lambda: case.results("native", dtype, **options)).items():
        assert found.keys() == expected.keys()
        for name, a in expected.items():
            b, of_gradient = found[name], "gradient" in name
            assert b.shape == a.shape and b.dtype == dtype, f"{name}, {instructions}"
            # A single key cancels out of a normalised output: its gradient is eps-sized, the rounding of it is not.
            sizes = [1e-3 if of_gradient else 1e-30, *a.abs().flatten().tolist()]
            error = (a - b.double()).abs().max().item() if a.numel() else 0
            assert error <= TOLERANCE[dtype][of_gradient] * max(sizes), f"{name}: error {error:.2e} by {instructions}"


@pytest.mark.parametrize("reads", [("out",), ("W",), ("z",), ("out", "z")], ids="-".join)
@pytest.mark.parametrize("rule", RULES)
def test_outputs_that_nothing_reads_have_no_gradient(rule, reads):
    compare(make(rule, length=20, state=True), reads=reads)


@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize(
    "rule, normalizer",
    # Without a normaliser the delta rules diverge.
    [(rule, name) for rule in RULES for name in NORMALIZERS if rule not in CORRECTING or name != "none"],
)
def test_values_and_gradients(rule, normalizer, map_name):
    calls = covering([(True, 35, None), (False, 19, 5), (False, 3, 30)], MASKS, [False, True], [False, True])
    # Each half meets every other map and rule.
    half = (MAPS.index(map_name) + RULES.index(rule) + list(NORMALIZERS).index(normalizer)) % 2
    for (causal, length, targets), mask, state, return_state in calls[half::2]:
        case = make(
            rule, map_name, normalizer, causal=causal, length=length, targets=targets, mask=mask, state=state,
            batch=2, d_key=7,
        )  # fmt: skip
        compare(case, return_state=return_state)


@pytest.mark.parametrize("rule, causal, length", covering(RULES, [True, False], LENGTHS))
def test_lengths(rule, length, causal):
    for state, targets in ((False, 3), (True, 150)):
        case = make(
            rule, normalizer="attention", causal=causal, length=length, targets=None if causal else targets,
            mask="holes", state=state, batch=2, heads=1,
        )  # fmt: skip
        compare(case, return_state=state)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (16, 16), (17, 33), (13, 64), (64, 63), (64, 64)])
@pytest.mark.parametrize("map_name", ["elu", "dpfp-1", "favor"])
def test_widths(map_name, sizes):
    d_key, d_value = sizes
    for rule in RULES:
        compare(make(rule, map_name, "sum", length=18, batch=2, d_key=d_key, d_value=d_value, state=True))


@pytest.mark.parametrize("length", [10, 32, 128, 300])
@pytest.mark.parametrize("rule", RULES)
def test_single_precision(rule, length):
    map_name = "elu" if length in (10, 300) else "dpfp-2"
    normalizer = "sum" if rule in CORRECTING else "attention"
    compare(
        make(rule, map_name, normalizer, length=length, batch=1, d_key=64, d_value=64).to(torch.float32), torch.float32
    )


@pytest.mark.parametrize("rule", ["sum", "delta"])
@pytest.mark.parametrize("causal", [True, False])
def test_sentences_of_which_no_state_is_wanted(rule, causal):
    """Their features are made in groups, of which 64 and more dimensions need several."""
    for length, nu, normalizer in itertools.product((9, 32, 50), (1, 3), ("sum", "both")):
        case = make(
            rule, f"dpfp-{nu}", normalizer, causal=causal, length=length, mask="holes", batch=2, heads=1, d_key=40,
            d_value=20,
        )  # fmt: skip
        compare(case.to(torch.float32), torch.float32, return_state=False)


def test_strides_are_free_but_for_the_last():
    case = make("delta", length=20, d_key=7)
    x = case.tensors

    def run(tensors):
        return replace(case, tensors=tensors).run("native")

    expected = run({name: y.contiguous() for name, y in x.items()})
    packed = torch.cat([x["q"], x["k"], x["v"]], dim=-1)  # one projection, sliced
    views = {"q": packed[..., :7], "k": packed[..., 7:14], "v": packed[..., 14:]}
    views["beta"] = x["beta"].permute(2, 0, 1).contiguous().permute(1, 2, 0)
    turned = {n: y.transpose(-1, -2).contiguous().transpose(-1, -2) for n, y in views.items()}  # last one strided too
    for given in (views, turned):
        assert all(map(torch.equal, run(given), expected))
    compare(replace(case, tensors={name: y[:, :1].expand(*y.shape) for name, y in x.items()}))


def test_scratch_is_written_before_it_is_read():
    """A large call leaves NaN in the thread's scratch; the next small one must not see it."""
    large = make("delta", length=300, batch=2, d_key=16)
    large.tensors = {name: torch.full_like(y, float("nan")) for name, y in large.tensors.items()}
    for causal, normalizer in ((True, "sum"), (False, "sum"), (True, "both")):
        large.options |= {"causal": causal, "normalize_output": normalizer == "both"}
        for rule, length in (("sum", 3), ("delta", 17), ("delta", 130), ("gated", 19), ("gated_delta", 70)):
            large.results("native")
            compare(make(rule, normalizer=normalizer, causal=causal, length=length, batch=2, d_key=16, d_value=20))


def test_a_call_goes_on_after_one_that_found_no_memory():
    def call(width):
        x = torch.ones(3, 1, 130, 1, width).cumsum(2).sin()
        return sum_rule(*x.unbind(), feature_map=None, causal=True, backend="native")[0]

    whole, limits = call(64), resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, limits[1]))
    try:
        with pytest.raises(MemoryError):
            call(8192)  # whose state takes 256 MiB
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert torch.equal(call(64), whole)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [17, 129, 300])
def test_both_ways(rule, length):
    case = make(rule, "elu", length=length, mask="holes", heads=2)
    compare(case, both_ways=True, return_state=False)
    compare(case, torch.float32, both_ways=True, return_state=False)
