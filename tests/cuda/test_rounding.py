"""Errors stay within the kernels' bounds whichever way tensor cores round sums. All other tests round towards zero."""

import pytest
import torch

from tests.cuda import kernels
from tests.cuda.shim import ROUNDINGS, rounding
from tests.cuda.test_kernels import DPFP, compare, make


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDINGS)
def test_long_sums(name):
    """Over tokens, in a state that five segments add to, and over features, 512 of them."""
    with rounding(kernels.kernels(), name):
        x, phi = make("delta", 300, 300, dtype=torch.float32, H=1, d_key=8, state=True)
        compare("shim", "delta", x, phi, normalize_output=True, return_state=True)
        x, phi = make("delta", 131, 131, dtype=torch.float32, H=1, d_key=64, feature_map=("dpfp", {"nu": 4}))
        compare("shim", "delta", x, phi)
        x, phi = make("gated_delta", 140, 140, dtype=torch.float32, H=1, d_key=8, state=True)
        compare("shim", "gated_delta", x, phi, normalize_output=True, return_state=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_to_nearest(dtype):
    with rounding(kernels.kernels(), "to_nearest"):
        for rule, feature_map in (("sum", ("favor", {"m": 20})), ("delta", DPFP), ("gated_delta", DPFP)):
            x, phi = make(rule, 50, 50, dtype=dtype, H=1, feature_map=feature_map)
            compare("shim", rule, x, phi, normalize_output=True, return_state=True)
