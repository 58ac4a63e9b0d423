"""Laws that hold for any shape, mask and cut, searched for counterexamples."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.cases import MAPS, MASKS, NORMALIZERS, RULES, make
from tests.requirements import TESTED
from tests.tolerances import TOLERANCES, error

# "auto" where the backend does not have the rule.
BACKENDS = st.sampled_from([name for name in TESTED if name != "reference"])


@st.composite
def cases(draw, **fixed):
    choices = dict(
        rule=st.sampled_from(RULES),
        map_name=st.sampled_from(MAPS),
        normalizer=st.sampled_from(sorted(NORMALIZERS)),
        causal=st.booleans(),
        length=st.one_of(st.integers(0, 12), st.integers(120, 140)),
        mask=st.sampled_from(MASKS),
        state=st.booleans(),
        batch=st.integers(1, 3),
        heads=st.integers(1, 2),
        d_key=st.integers(2, 5),
        d_value=st.integers(1, 4),
        eps=st.sampled_from([0.0, 1e-6, 1e-2]),
        seed=st.integers(0, 1000),
    )
    chosen = {name: draw(strategy) for name, strategy in choices.items() if name not in fixed} | fixed
    targets = None if chosen["causal"] else draw(st.integers(0, 6))
    return make(**chosen, targets=targets)


def agree(found, expected):
    for name, actual, wanted in zip(("out", "W", "z"), found, expected, strict=True):
        if wanted is not None:
            assert error(actual, wanted) <= TOLERANCES["operator"], name


@given(cases(), BACKENDS)
def test_any_call_is_the_time_loop(case, backend):
    agree(case.run(backend), case.run("reference"))


@given(cases(length=8, batch=2, heads=1))
def test_the_time_loop_is_the_naive_implementation(case):
    agree(case.run("reference"), case.expected())


@given(cases(causal=True, length=131), BACKENDS, st.lists(st.integers(0, 131), max_size=4))
def test_any_cut_carries_the_state_over(case, backend, cuts):
    expected = case.run(backend)
    outputs, state = [], case.state
    edges = [0, *sorted(cuts), 131]
    for first, last in itertools.pairwise(edges):
        tensors = {name: x[:, first:last] for name, x in case.tensors.items()}
        mask = None if case.mask is None else case.mask[:, first:last]
        out, *state = type(case)(case.rule, tensors, case.phi, None, mask, state, case.options).run(backend)
        outputs.append(out)
    agree((torch.cat(outputs, 1), *state), expected)


@given(cases(mask="none"), BACKENDS, st.lists(st.integers(0, 12), min_size=1, max_size=8), st.integers(0, 1000))
def test_pads_put_in_anywhere_change_nothing(case, backend, places, seed):
    expected = case.run(backend)
    length = case.tensors["k"].shape[1]
    order = list(range(length))
    for place in places:
        order.insert(min(place, len(order)), -1)
    order = torch.tensor(order)
    generator = torch.Generator().manual_seed(seed)

    def padded(x):
        wide = 50 * torch.rand(x.shape[0], len(order), *x.shape[2:], generator=generator, dtype=x.dtype)
        wide[:, order >= 0] = x
        return wide

    names = list(case.tensors) if case.options["causal"] else [name for name in case.tensors if name != "q"]
    case.tensors = case.tensors | {name: padded(case.tensors[name]) for name in names}
    case.mask = (order < 0).expand(case.tensors["k"].shape[0], -1)
    out, W, z = case.run(backend)
    agree((out[:, order >= 0] if case.options["causal"] else out, W, z), expected)


@given(cases(causal=True, length=130), BACKENDS, st.integers(1, 129))
def test_the_future_does_not_reach_the_past(case, backend, now):
    before = case.run(backend)[0][:, :now]
    for x in case.tensors.values():
        x[:, now:] = x[:, now:].flip(1) * 0.7
    assert torch.equal(case.run(backend)[0][:, :now], before)
