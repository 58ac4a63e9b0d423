"""What tests change of the emulated device of emulated_device.py; on a GPU they skip, or have nothing to change."""

import pytest

from fwp_fairseq import _self_check
from fwp_fairseq.ops import native_cuda
from tests.cuda.cases import emulated

_self_check.trust()  # these tests are the longer check


@pytest.fixture
def device():
    """Changes what the device says of itself."""
    if emulated is None:
        pytest.skip("only an emulated device can change what it is")
    native_cuda._refusal.cache_clear()
    yield emulated.set_device
    emulated.set_device()
    native_cuda._refusal.cache_clear()
