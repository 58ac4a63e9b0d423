"""What tests change of the emulated device of emulated_device.py; on a GPU they skip, or have nothing to change."""

import pytest

from fwp_fairseq import _gpu_check, _operator
from tests.cuda.cases import emulated

_gpu_check.trust()  # these tests are the longer check


@pytest.fixture
def device():
    """Changes what the device says of itself."""
    if emulated is None:
        pytest.skip("only an emulated device can change what it is")
    _operator.refusal.cache_clear()
    yield emulated.set_device
    emulated.set_device()
    _operator.refusal.cache_clear()
