"""The emulated primitives against numpy, and that the shim finds kernels which break the rules."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cuda import shim

NAMES = (
    "multiply_halves", "transposed", "multiply_tf32", "shuffle", "round", "neighbour", "neighbour_without_barrier",
    "divergent", "early_end", "overrun", "greedy", "crooked", "teams", "stray",
    "again", "own_team", "copy", "early_copy", "lost_copy", "crooked_copy",
)  # fmt: skip


def primitives() -> ctypes.CDLL:
    return shim.library(Path(__file__).with_name("primitives.cpp"))


def run(name: str, given: np.ndarray | None = None, count: int = 64, schedule: int = 0, blocks: int = 2) -> np.ndarray:
    function = primitives().run_primitive
    function.restype = ctypes.c_char_p
    given = np.zeros(1, np.float32) if given is None else np.ascontiguousarray(given)
    out = np.full(count, np.nan, np.float32)
    error = function(
        NAMES.index(name), blocks, schedule, given.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p)
    )
    if error:
        raise RuntimeError(error.decode())
    return out


@pytest.mark.parametrize("schedule", [0, 1])
def test_half_products(schedule):
    generator = np.random.default_rng(0)
    A, B = generator.normal(size=(16, 16)).astype(np.float16), generator.normal(size=(16, 8)).astype(np.float16)
    found = run("multiply_halves", np.concatenate([A.ravel(), B.ravel()]), 128, schedule).reshape(16, 8)
    np.testing.assert_allclose(found, A.astype(np.float64) @ B.astype(np.float64), rtol=1e-6, atol=1e-6)


def test_transposed_matrices():
    found = run("transposed", count=256).reshape(32, 4, 2)
    rows = np.arange(256).reshape(4, 8, 8)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        np.testing.assert_array_equal(found[lane], rows[:, 2 * t : 2 * t + 2, g])


def tf32(x: np.ndarray) -> np.ndarray:
    """To 10 bits of mantissa, ties away from zero."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.copysign(np.floor(np.abs(mantissa) * 2**11 + 0.5), mantissa), exponent - 11)


def test_tf32_products():
    generator = np.random.default_rng(0)
    A, B = generator.normal(size=(16, 8)).astype(np.float32), generator.normal(size=(8, 8)).astype(np.float32)
    found = run("multiply_tf32", np.concatenate([A.ravel(), B.ravel()]), 128).reshape(16, 8)
    np.testing.assert_allclose(found, tf32(A) @ tf32(B), rtol=1e-6, atol=1e-6)
    assert np.abs(found - A.astype(np.float64) @ B).max() > 1e-5  # that is, operands are rounded


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "rounding, small, expected",
    [
        ("towards_zero", 2**-24, 1 + 7 * 2**-23),  # 15 / 2 units of the last place
        ("towards_zero", 2**-26, 1),  # below what summands are cut to
        ("towards_zero", 3 * 2**-26, 1 + 3 * 2**-23),  # of each one half is left: 15 / 4 units
        ("to_nearest", 2**-24, 1),  # each one is half a unit, which rounds to even
        ("to_nearest", 3 * 2**-25, 1 + 15 * 2**-23),  # and this to a whole unit
    ],
)
def test_roundings(rounding, small, expected, sign):
    """A sum of 1 and 15 small products."""
    A, B = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16)
    A[:] = 2**-12
    A[:, 0] = 1
    B[:] = sign * small * 2**12
    B[0] = sign
    with shim.rounding(primitives(), rounding):
        found = run("multiply_halves", np.concatenate([A.ravel(), B.ravel()]), 128)
    np.testing.assert_array_equal(found, np.full(128, np.float32(sign * expected)))


def test_shuffles():
    x = np.arange(32, dtype=np.float32)
    found = run("shuffle", x)
    np.testing.assert_array_equal(found[:32], x[np.arange(32) ^ 5])
    np.testing.assert_array_equal(found[32:], x[(np.arange(32) + 3) % 32])


def test_rounding():
    generator = np.random.default_rng(0)
    x = (generator.normal(size=4096) * 2.0 ** generator.integers(-30, 18, size=4096)).astype(np.float32)
    x[:8] = [0, -0.0, np.inf, -np.inf, 65504, 65519.99, 65520, 2**-25]
    half, bfloat16, single = run("round", x, 3 * 4096).reshape(3, 4096)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(half, x.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(bfloat16, torch.from_numpy(x).bfloat16().float().numpy())
    finite = np.isfinite(x)
    np.testing.assert_array_equal(single[finite], tf32(x[finite]))


def test_copies():
    """What is copied is not there before it has arrived."""
    x = np.arange(128, dtype=np.float32)
    for schedule in (0, 1):
        found = run("copy", x, 128, schedule, blocks=1).reshape(32, 4)
        np.testing.assert_array_equal(found, x.reshape(32, 4)[::-1])
        assert np.isnan(run("early_copy", x, 128, schedule, blocks=1)).any()


def test_barriers():
    """Without its barrier the kernel reads what was not written yet: NaN in either order of threads."""
    expected = 63 - np.arange(64)
    for schedule in (0, 1):
        np.testing.assert_array_equal(run("neighbour", schedule=schedule), expected)
        np.testing.assert_array_equal(run("teams", schedule=schedule), expected)
        assert np.isnan(run("neighbour_without_barrier", schedule=schedule)).any()
        found = run("own_team", count=128, schedule=schedule)
        np.testing.assert_array_equal(found, np.concatenate([expected, np.arange(64) - 127]))


@pytest.mark.parametrize(
    "name, message",
    [
        ("divergent", "do not meet: some wait in sync_warp"),
        ("early_end", "do not meet: some have ended"),
        ("stray", "do not meet: some have ended, or wait at another barrier"),
        ("overrun", "wrote 64 bytes from the start of its 64 bytes"),
        ("greedy", "more shared memory than its launch asked for"),
        ("crooked", "not 16-byte aligned"),
        ("lost_copy", "ends before its copies have arrived"),
        ("crooked_copy", "a copy is not 16-byte aligned"),
    ],
)
def test_broken_kernels_are_found(name, message):
    with pytest.raises(RuntimeError, match=message):
        run(name)


@pytest.mark.parametrize(
    "name, barrier, message",
    [
        ("neighbour", 0, "32 writes byte 128 of shared memory, which was read by thread 31"),
        ("teams", 0, "32 writes byte 128 of shared memory, which was read by thread 31"),  # both teams' places
        ("again", 0, "32 writes byte 128 of shared memory, which was read by thread 31"),
        ("again", 1, "32 reads byte 124 of shared memory, which was written by thread 31"),
        ("own_team", 0, "96 writes byte 384 of shared memory, which was read by thread 95"),
        ("own_team", 1, "96 reads byte 380 of shared memory, which was written by thread 95"),
        ("copy", 0, "16 writes byte 256 of shared memory, which was read by thread 15"),
        ("multiply_halves", 0, "0 reads byte 0 of shared memory, which was written by thread 0"),  # a whole warp reads
    ],
)
def test_races_are_found(name, barrier, message):
    """None as the kernels are, one without a barrier, even where both orders of threads happen to hide it."""
    library = primitives()
    with shim.watched(library):
        run(name, np.zeros(16 * 24, np.float16), count=256, blocks=1)
    places = sorted(shim.barriers(library))[barrier][1]
    with shim.watched(library, without=places), pytest.raises(RuntimeError, match=f"race: thread {message}"):
        run(name, np.zeros(16 * 24, np.float16), count=256, blocks=1)


def test_races_of_blocks_are_found():
    with shim.watched(primitives()), pytest.raises(RuntimeError, match="of global memory, which another block wrote"):
        run("again")
