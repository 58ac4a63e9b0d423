"""Every backend against the naive implementation, float64."""

import itertools

import pytest
import torch

from tests.ops.cases import MAPS, MASKS, NORMALIZERS, RULES, make
from tests.pairs import covering
from tests.requirements import TESTED, serves
from tests.tolerances import TOLERANCES, assert_close, error

# test_native.py compares the compiled kernels with the loops, for the same choices.
IN_PYTORCH = ("reference", "chunked")
LENGTHS = (0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129)


def check(case, backends: tuple[str, ...] = IN_PYTORCH) -> None:
    expected = case.expected()
    for backend in backends:
        for name, actual, wanted in zip(("out", "W", "z"), case.run(backend), expected, strict=True):
            assert (actual is None) == (wanted is None), f"{name} is {actual} by {backend}"
            if wanted is not None:
                size = error(actual, wanted)
                assert size <= TOLERANCES["operator"], f"{name}: error {size:.3g} by {backend}"


@pytest.mark.parametrize(
    "rule, map_name, normalizer, causal", covering(RULES, MAPS, NORMALIZERS, [True, False], strength=3)
)
def test_any_three_choices_with_every_mask(rule, map_name, normalizer, causal):
    state = map_name in ("elu", "dpfp-2")
    for number, mask in enumerate(MASKS):
        targets, state = None if causal else (3, 9)[number % 2], not state
        check(make(rule, map_name, normalizer, causal=causal, mask=mask, state=state, targets=targets, seed=number))


@pytest.mark.parametrize("rule, causal, length", covering(RULES, [True, False], LENGTHS))
def test_lengths(rule, causal, length):
    place = LENGTHS.index(length)
    for number, normalizer in list(enumerate(NORMALIZERS))[(place // 2 + RULES.index(rule) + causal) % 2 :: 2]:
        case = make(
            rule, "dpfp-1", normalizer, causal=causal, length=length, targets=None if causal else 4,
            mask=MASKS[(length + number) % len(MASKS)], state=(place + number // 2) % 2 == 0, batch=2, heads=1,
            seed=length,
        )  # fmt: skip
        check(case)


@pytest.mark.parametrize("rule, sources, targets", covering(RULES, [0, 1, 150], [0, 1, 5]))
def test_read_only_and_write_only(rule, sources, targets):
    for number, normalizer in enumerate(NORMALIZERS):
        state = (number + targets + sources) % 2 == 0
        case = make(
            rule, "elu", normalizer, causal=False, length=sources, targets=targets, state=state, batch=2, heads=1
        )
        check(case, TESTED)
        for backend in TESTED:
            assert_close(case.run(backend, return_state=False)[0], case.run(backend)[0], "operator")


@pytest.mark.parametrize("batch, heads", [(0, 2), (2, 0)])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", TESTED)
def test_no_rows_or_no_heads(backend, rule, batch, heads):
    case = make(rule, batch=batch, heads=heads)
    out, W, z = case.run(backend)
    assert out.shape == (batch, 6, heads, 5) and W.shape == (batch, heads, 12, 5) and z.shape == (batch, heads, 12)


@pytest.mark.parametrize("rule", RULES)
def test_values_of_no_width(rule):
    """Feature sums are those of any values; the compiled library would leave them unwritten."""
    for normalizer, causal, length in itertools.product(NORMALIZERS, (True, False), (0, 1, 130)):
        case = make(rule, "elu", normalizer, causal=causal, length=length, d_value=0, batch=2, heads=1)
        check(case, ("auto", "chunked"))
        if serves("native", rule):
            with pytest.raises(NotImplementedError, match="backend='native' cannot serve"):
                case.run("native")


@pytest.mark.parametrize("rule, normalizer, causal", covering(RULES, NORMALIZERS, [True, False]))
@pytest.mark.parametrize("backend", TESTED)
def test_return_state_changes_nothing_but_the_state(backend, rule, normalizer, causal):
    for length in (5, 130) if backend != "reference" else (5,):
        for state in (False, True):
            case = make(rule, "elu", normalizer, causal=causal, length=length, mask="holes", state=state, batch=2)
            out, W, z = case.run(backend, return_state=False)
            assert W is None and z is None
            assert_close(out, case.run(backend)[0], "rounding")
            # Not asked, there is one where one is given.
            assert (case.run(backend, return_state=None)[1] is not None) == state


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", TESTED)
def test_inputs_stay_as_they_are(backend, rule, causal):
    case = make(rule, mask="holes", state=True, causal=causal)
    given = [*case.tensors.values(), case.mask, *case.state]
    before = [tensor.clone() for tensor in given]
    versions = [tensor._version for tensor in given]
    out, W, z = case.run(backend)
    for tensor in (out, W, z):
        tensor.zero_()
    assert versions == [tensor._version for tensor in given]
    for tensor, old in zip(given, before, strict=True):
        assert torch.equal(tensor, old)
