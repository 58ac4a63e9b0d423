"""All tolerances of the suite, with their reasons. Errors are relative to max(1, largest expected magnitude)."""

from typing import NamedTuple

import numpy as np
import torch

TOLERANCES = {
    # float64 rounds at 1e-16; hundreds of steps and a triangular solve of a well-conditioned system stay far below.
    "operator": 1e-10,
    # The same through several layers with norms, and two orders of summation.
    "model": 1e-9,
    # Two float64 evaluations of the same products in another order, no accumulation over layers.
    "rounding": 1e-12,
    # Central differences with a step of 1e-5: truncation 1e-10, cancellation 1e-16 / 1e-5.
    "finite_difference": 1e-6,
    # float32 rounds at 6e-8; sums over 300 positions, and quotients by denominators that may be small.
    "float32": 2e-5,
    # Half precision rounds the output at 5e-4 (11 bits) and 4e-3 (8 bits); the sums before it are float32.
    "float16": 1e-3,
    "bfloat16": 8e-3,
    # Relative error of the mean of 2000 FAVOR+ draws of 64 features; the worst pair is off by 0.018 over several seeds.
    "favor_mean": 0.05,
}


class Tolerance(NamedTuple):
    values: float
    gradients: float


# Permitted errors of operators on the CPU: the largest difference over the largest magnitude.
LARGEST = {"float32": Tolerance(1e-6, 1e-5), "bfloat16": Tolerance(5e-3, 5e-3), "float16": Tolerance(1e-3, 1e-3)}
# Those of the CUDA kernels: root mean square of the difference over that of the values. In half types, operands of
# products have 11 bits, and results are rounded to 11 and 8 bits. Kernels that take
# float32 have no such products.
CUDA = {"float32": Tolerance(1.5e-6, 5e-6), "bfloat16": Tolerance(2.5e-3, 4e-3), "float16": Tolerance(6e-4, 2e-3)}


def error(actual, expected) -> float:
    """The largest absolute difference over max(1, largest expected magnitude); infinite if only one side is finite."""
    actual, expected = (np.asarray(x.detach() if isinstance(x, torch.Tensor) else x) for x in (actual, expected))
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    if not expected.size:
        return 0.0
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max()
    return float(difference / max(1.0, np.abs(expected).max())) if np.isfinite(difference) else float("inf")


def assert_close(actual, expected, tolerance: str) -> None:
    found = error(actual, expected)
    assert found <= TOLERANCES[tolerance], f"error {found:.3g}, {tolerance} allows {TOLERANCES[tolerance]:.3g}"
