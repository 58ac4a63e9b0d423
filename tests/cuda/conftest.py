"""The emulated device of emulated_device.py, for tests that change what it says of itself."""

import sys

import pytest

from fwp_fairseq.ops import native_cuda

emulated = sys.modules.get("tests.cuda.emulated_device")  # the plugin, where it is loaded


@pytest.fixture
def device():
    """Changes what the device says of itself."""
    if emulated is None:
        pytest.skip("only an emulated device can change what it is")
    native_cuda._refusal.cache_clear()
    yield emulated.set_device
    emulated.set_device()
    native_cuda._refusal.cache_clear()
