"""The emulated primitives against numpy, and that the shim finds kernels which break the rules."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cuda import compiled as shim

NAMES = (
    "multiply", "transposed", "shuffle", "round", "neighbour", "neighbour_without_barrier",
    "divergent", "two_places", "early_end", "overrun", "greedy", "crooked",
    "again", "copy", "early_copy", "lost_copy", "crooked_copy", "halves",
)  # fmt: skip


def primitives() -> ctypes.CDLL:
    return shim.library(Path(__file__).with_name("primitives.cpp"))


def run(name: str, given: np.ndarray | None = None, count: int = 64, blocks: int = 2) -> np.ndarray:
    function = primitives().run_primitive
    function.restype = ctypes.c_char_p
    given = np.zeros(1, np.float32) if given is None else np.ascontiguousarray(given)
    out = np.full(count, np.nan, np.float32)
    error = function(
        NAMES.index(name), blocks, given.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p)
    )
    if error:
        raise RuntimeError(error.decode())
    return out


def test_products():
    generator = np.random.default_rng(0)
    A, B = halves(generator.normal(size=(16, 16))), halves(generator.normal(size=(16, 8)))
    found = run("multiply", np.concatenate([A.ravel(), B.ravel()]), 128).reshape(16, 8)
    exact = values(A) @ values(B)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6)


def halves(x: np.ndarray) -> np.ndarray:
    """As their bits."""
    return x.astype(np.float16).view(np.int16)


def values(bits: np.ndarray) -> np.ndarray:
    return bits.view(np.float16).astype(np.float64)


def test_transposed_matrices():
    found = run("transposed", count=256).reshape(32, 4, 2)
    rows = np.arange(256).reshape(4, 8, 8)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        np.testing.assert_array_equal(found[lane], rows[:, 2 * t : 2 * t + 2, g])


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    "small, expected",
    [
        (2**-24, 1 + 7 * 2**-23),  # 15 / 2 units of the last place
        (2**-26, 1),  # below what summands are cut to
        (3 * 2**-26, 1 + 3 * 2**-23),  # of each one half is left: 15 / 4 units
    ],
)
def test_sums_are_rounded_towards_zero(small, expected, sign):
    """A sum of 1 and 15 small products."""
    A, B = np.zeros((16, 16)), np.zeros((16, 8))
    A[:] = 2**-12
    A[:, 0] = 1
    B[:] = sign * small * 2**12
    B[0] = sign
    found = run("multiply", np.concatenate([halves(A).ravel(), halves(B).ravel()]), 128)
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
    half, bfloat16 = run("round", x, 2 * 4096).reshape(2, 4096)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(half, x.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(bfloat16, torch.from_numpy(x).bfloat16().float().numpy())


def test_arithmetic_of_halves():
    generator = np.random.default_rng(0)
    x = (generator.normal(size=(3, 2048)) * 2.0 ** generator.integers(-12, 8, size=(3, 2048))).astype(np.float16)
    x[:, :8] = [[0, np.nan, 60000, -0.0, 1, 2**-24, np.inf, 1], [1, 1, 60000, 0, np.nan, 2**-24, 1, -1], [0] * 8]
    found = run("halves", x, 7 * 2048, blocks=1).reshape(7, 2048)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = x.astype(np.float64)
        fused = (wide[0] * wide[1] + wide[2]).astype(np.float16)
        products = x[0] * x[1]
        chosen = np.where(np.signbit(x[0]), x[1], x[2])
        expected = [x[0] + x[1], products, fused, np.maximum(products, 0), np.fmax(x[0], x[1]), chosen]
    np.testing.assert_array_equal(found[:6], np.stack(expected).astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found[6]), x[0] != 0)  # all bits set are NaN


def test_copies():
    """What is copied is not there before it has arrived."""
    x = np.arange(128, dtype=np.float32)
    found = run("copy", x, 128, blocks=1).reshape(32, 4)
    np.testing.assert_array_equal(found, x.reshape(32, 4)[::-1])
    assert np.isnan(run("early_copy", x, 128, blocks=1)).any()


def test_barriers():
    """Without its barrier the kernel reads what was not written yet: NaN."""
    np.testing.assert_array_equal(run("neighbour"), 63 - np.arange(64))
    assert np.isnan(run("neighbour_without_barrier")).any()


@pytest.mark.parametrize(
    "name, message",
    [
        ("divergent", r"do not meet: some wait at primitives.cpp:\d+, others at the block's barrier"),
        ("early_end", "do not meet: some have ended"),
        ("two_places", "the lanes of a warp meet at different places"),
        ("overrun", "wrote 64 bytes from the start of its 64 bytes"),
        ("greedy", "more shared memory than its launch asked for"),
        ("crooked", "not 16-byte aligned"),
        ("lost_copy", "ends before its copies have arrived"),
        ("crooked_copy", "a copy is not aligned to its bytes"),
    ],
)
def test_broken_kernels_are_found(name, message):
    with pytest.raises(RuntimeError, match=message):
        run(name)


@pytest.mark.parametrize(
    "name, barrier, message",
    [
        ("neighbour", 0, "32 writes byte 128 of shared memory, which was read by thread 31"),
        ("again", 0, "32 writes byte 128 of shared memory, which was read by thread 31"),
        ("again", 1, "32 reads byte 124 of shared memory, which was written by thread 31"),
        ("copy", 0, "16 writes byte 256 of shared memory, which was read by thread 15"),
        ("multiply", 0, "0 reads byte 0 of shared memory, which was written by thread 0"),  # a whole warp reads
    ],
)
def test_races_are_found(name, barrier, message):
    """None as the kernels are, one without a barrier, even where the order of threads happens to hide it."""
    library = primitives()
    with shim.watched(library):
        run(name, np.zeros(16 * 24, np.int16), count=256, blocks=1)
    places = sorted(shim.barriers(library))[barrier][1]
    with shim.watched(library, without=places), pytest.raises(RuntimeError, match=f"race: thread {message}"):
        run(name, np.zeros(16 * 24, np.int16), count=256, blocks=1)


def test_races_of_blocks_are_found():
    with shim.watched(primitives()), pytest.raises(RuntimeError, match="of global memory, which another block wrote"):
        run("again")
