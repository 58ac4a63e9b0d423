"""Watched kernels have no race, and the tests notice every barrier that they need."""

import pytest
import torch

from fwp_fairseq.ops.call import CORRECTING, RULES
from tests.cuda import test_recurrence_glue as recurrences
from tests.cuda import test_row_function_glue as row_functions
from tests.cuda.cases import emulated, make, mask, run
from tests.cuda.test_decode_kernels import Sentence, Site
from tests.cuda.test_decode_kernels import make as make_decoding

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("native", "cuda"),
    pytest.mark.skipif(emulated is None, reason="races are found on an emulated device"),
]
# So many are not noticed if one is left out: most end functions, and what follows begins with a barrier of its own. One
# follows loads that bring a warp together (short.cuh, invert), and one serves rules that correct nothing, which are not
# run here (short_backward.cuh, values_back).
NOT_NEEDED = 17


def call(rule: str, length: int, causal=True, features=True, everything=True) -> list[torch.Tensor]:
    """One call of several slices of values and tiles of features, with everything that a call can have.

    Without it the blocks of a short call are half as large, unless the rule decays.
    """
    x, phi = make(rule, length, length, dtype=torch.bfloat16, H=1, d_key=20, d_value=70, state=everything)
    found = run(
        rule, x, phi, backend="native", device="cuda", causal=causal, normalize_features=features,
        normalize_output=True, key_padding_mask=mask(1, length) if everything else None, return_state=everything,
    )  # fmt: skip
    return list(found.values())


def decode(rule: str, d_key: int, d_value: int) -> list[torch.Tensor]:
    decoding = make_decoding(rule, ("dpfp", {"nu": 2}), "both", d_key)
    sentence, rows = Sentence(decoding, 12, d_key, d_value, torch.bfloat16), torch.arange(12)[None]
    site = Site(decoding)
    out = site.steps(sentence, rows, together=5)
    site.cache.W, site.cache.z = torch.ops.fwp.fold(
        site.cache.keys, site.cache.written, site.cache.strengths, site.cache.ancestors, site.cache.rows, None, None,
        site.cache.count, rule, "dpfp", 4 * d_key, True,
    )  # fmt: skip
    return [out, site.cache.W.cpu(), site.cache.z.cpu()]


def short_calls(rule: str) -> list[torch.Tensor]:
    """Calls that one launch serves in each direction, of two slabs of features and two tiles of values."""
    found = []
    for length, options in ((40, {}), (20, {"causal": False}), (33, {"normalize_output": True})):
        x, phi = make(rule, length, length, dtype=torch.bfloat16, H=1, d_key=32, d_value=72)
        options = dict(causal=True, normalize_features=True, normalize_output=False, return_state=False) | options
        found += run(rule, x, phi, backend="native", device="cuda", **options).values()
    return found


def all_calls(rule: str) -> list[torch.Tensor]:
    found = short_calls(rule) + call(rule, 40) + call(rule, 80, features=False) + call(rule, 70, causal=False)
    return found + call(rule, 20, everything=False) + decode(rule, 16, 70) + decode(rule, 64, 64)


@pytest.mark.parametrize("rule", RULES)
def test_no_races(rule):
    with emulated.watched():
        all_calls(rule)


@recurrences.NAMES
@pytest.mark.parametrize("d", [20, 40, 100])
def test_no_races_of_recurrences(name, d):
    with emulated.watched():
        recurrences.results(name, recurrences.make(name, d, heads=1), recurrences.PADS, "native")


@row_functions.NAMES
def test_no_races_of_row_functions(name):
    x = torch.randn(2, 3, 100)
    with emulated.watched():
        row_functions.assert_agree(name, x, row_functions.cotangent(name, x))


def test_barriers_that_are_left_out_are_noticed():
    """By the detector, by numbers that differ, or by threads that do not meet."""
    rules = ("delta", "gated_delta")
    assert set(rules) <= set(CORRECTING)
    expected = {}
    with emulated.watched():
        for rule in rules:
            expected[rule] = all_calls(rule)
        places = sorted({place for _, place in emulated.barriers()})
    unnoticed = []
    for place in places:
        with emulated.watched(without=place):
            try:
                same = all(all(map(torch.equal, all_calls(rule), expected[rule])) for rule in rules)
            except RuntimeError:
                same = False
        if same:
            unnoticed.append(place)
    assert len(places) > 40
    assert len(unnoticed) <= NOT_NEEDED, unnoticed
