"""Every kernel as nvcc has made it, on the emulated device: small cases, and that no kernel is left out."""

import pytest
import torch

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import softmax_pair, unit_rows
from fwp_fairseq.ops import self_check
from fwp_fairseq.ops.self_check import both_passes, error
from tests.cuda.cases import compare, emulated, make

if emulated is None or not emulated.translated():
    pytest.skip("test_emulated_device.py runs these tests", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.needs("native", "cuda")]
CASES = dict(self_check.cases("cuda"))


@pytest.mark.parametrize("name", CASES)
def test_the_check_of_a_first_gpu(name):
    """Both passes of every rule in one chunk and in several, decoding and folding."""
    assert CASES[name]() <= self_check.LIMITS["cuda"]


@pytest.mark.parametrize("feature_map", ["elu", "favor"])
def test_rows(feature_map):
    options = {"m": 8} if feature_map == "favor" else {}
    x, phi = make("gated", 70, 70, dtype=torch.float16, H=1, d_key=8, feature_map=(feature_map, options))
    compare("gated", x, phi, causal=False, normalize_output=True, looser=2)


@pytest.mark.parametrize("d", [8, 40, 100])
@pytest.mark.parametrize("run, gates", [(ops.recur, 1), (ops.recur_lstm, 3)])
def test_recurrences(run, gates, d):
    torch.manual_seed(d)
    z, k, v = torch.randn(3, 1, 5, gates, d, dtype=torch.float64)
    x = [z, k.softmax(-1), v, torch.rand(1, 5, gates, dtype=torch.float64)]
    found = both_passes(lambda *given: list(run(*given, backend="native")), [y.float().cuda() for y in x])
    expected = both_passes(lambda *given: list(run(*given, backend="chunked")), [y.float().double() for y in x])
    assert error([y.cpu() for y in found], expected) <= 1e-5


FUNCTIONS = {
    "softmax_pair": (softmax_pair.softmax_pair, lambda x: torch.cat([x.softmax(-1), (-x).softmax(-1)], -1)),
    "length one": (unit_rows.TO_LENGTH_ONE, None),
    "elu, length one": (unit_rows._ELU_TO_LENGTH_ONE, None),
    "rms one": (unit_rows._TO_RMS_ONE, None),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_row_functions(name):
    function, exact = FUNCTIONS[name]
    numbers = () if exact else (1e-6,)
    exact = exact or function.in_pytorch
    x = torch.randn(1, 9, 2, 40).double()
    found = both_passes(lambda y: [function(y, *numbers)], [x.float().cuda()])
    expected = both_passes(lambda y: [exact(y, *numbers)], [x.float().double()])
    assert error([y.cpu() for y in found], expected) <= 1e-5


def test_no_kernel_is_left_out():
    """The last of this file, in its one process."""
    assert set(emulated.translated()) == set(emulated.translated(started=True))
