"""Every kernel as nvcc has made it, on the emulated device: small cases, and that no kernel is left out."""

import pytest
import torch

from fwp_fairseq.ops import self_check
from tests.cuda import test_recurrence_glue as recurrences
from tests.cuda import test_row_function_glue as row_functions
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
@recurrences.NAMES
def test_recurrences(name, d):
    recurrences.assert_agree(name, recurrences.make(name, d, heads=1), recurrences.PADS, looser=2)


@row_functions.NAMES
def test_row_functions(name):
    x = torch.randn(1, 9, 2, 40)
    row_functions.assert_agree(name, x, row_functions.cotangent(name, x))


def test_no_kernel_is_left_out():
    """The last of this file, in its one process."""
    assert set(emulated.translated()) == set(emulated.translated(started=True))
