"""Wrong arguments of sources, windows and recurrences are refused alike by every backend, in every type."""

from functools import partial

import pytest
import torch

from fwp_fairseq.layers import FastWeightAttention
from fwp_fairseq.ops import read_source, read_window, recur, recur_lstm

BACKENDS = ("auto", "reference", "chunked")
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
B, S, H, D = 2, 6, 3, 4
META = torch.device("meta")
FREE = {("q", 1), ("sums", 1), ("values", 3)}  # dimensions that no other tensor determines


def window():
    x = torch.randn(B, S, H, D)
    given = {"q": x[:, 2:], "k": x, "v": x, "sums": torch.randn(B, 3, H, D + 1), "u": torch.randn(H, D)}
    return given | {"bias": torch.randn(H), "key_padding_mask": torch.zeros(B, S, dtype=torch.bool)}


def source():
    q, keys, values = torch.randn(B, S, H, D), torch.randn(B, H, D, S + 1), torch.randn(B, H, S + 1, D + 1)
    return {"q": q, "keys": keys, "values": values, "key_padding_mask": torch.zeros(B, S + 1, dtype=torch.bool)}


def recurrence(gates):
    x = torch.randn(B, S, gates * H, D)
    given = {"z": x, "k": x.softmax(-1), "v": x, "beta": torch.rand(B, S, gates * H)}
    given |= {"R": torch.randn(B, gates * H, D, D), "key_padding_mask": torch.zeros(B, S, dtype=torch.bool)}
    return given | {name: torch.randn(B, H, D) for name in (("y",) if gates == 1 else ("h", "c"))}


CALLS = {
    "read_source": (read_source, source),
    "read_window": (partial(read_window, size=2), window),
    "recur": (recur, lambda: recurrence(1)),
    "recur_lstm": (recur_lstm, lambda: recurrence(3)),
}


def wrong(name, x):
    """A dimension too many, too few, longer, of one (which PyTorch would repeat); elsewhere; of other numbers."""
    yield x[None]
    yield x[0]
    for dim in range(x.dim()):
        if (name, dim) not in FREE:
            yield torch.cat([x, x.narrow(dim, 0, 1)], dim)
            yield x.narrow(dim, 0, 1)
    yield x.to(META)
    yield x.to(torch.float32 if x.dtype == torch.bool else torch.int64)
    yield 3


def run(call, given, backend):
    return CALLS[call][0](**given, backend=backend)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("call", CALLS)
def test_every_tensor_is_checked(call, backend, dtype):
    given = {name: x if x.dtype == torch.bool else x.to(dtype) for name, x in CALLS[call][1]().items()}
    run(call, given, backend)
    for name, x in given.items():
        for other in wrong(name, x):
            with pytest.raises(ValueError, match=rf"^{call}: \w+ is .*, expected"):
                run(call, given | {name: other}, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_places_and_numbers_of_positions(backend):
    x, u, bias = torch.randn(B, S, H, D), torch.randn(H, D), torch.randn(H)
    storage = x.flatten(0, 1)[:, None]
    for places, error in (
        (torch.full((B, 3), -1, dtype=torch.int32), (IndexError, RuntimeError, ValueError)),
        (torch.full((B, 3), len(storage), dtype=torch.int32), (IndexError, RuntimeError, ValueError)),
        (torch.zeros(B, 3, dtype=torch.int64), ValueError),
        (torch.zeros(B + 1, 3, dtype=torch.int32), ValueError),
    ):
        with torch.no_grad(), pytest.raises(error):
            read_window(x[:, :1], storage, storage, None, u, bias, size=3, places=places, backend=backend)
    with pytest.raises(ValueError, match="read_window: q is of 6 positions, expected at most the 3 of k"):
        read_window(x, x[:, :3], x[:, :3], None, u, bias, size=2, backend=backend)
    with pytest.raises(ValueError, match="read_window: size is 0, expected 1 or more"):
        read_window(x, x, x, None, u, bias, size=0, backend=backend)
    sums = torch.randn(B, 3, H, D + 1)
    with pytest.raises(ValueError, match="read_window: sums is of 3 positions, expected at most the 2 of q"):
        read_window(x[:, :2], x, x, sums, u, bias, size=2, backend=backend)
    with pytest.raises(ValueError, match=r"read_window: v is of type torch\.float64, expected q's type"):
        read_window(x, x, x.double(), None, u, bias, size=2, backend=backend)


@pytest.mark.parametrize("kind", ["sum", "hedgehog-window", "delta-rnn", "delta-lstm", "delta-mlp", "fwp1991"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64], ids=str)
def test_states_of_other_numbers(kind, dtype):
    layer = FastWeightAttention("dpfp" if kind == "sum" else kind, 12, 2)
    x = torch.randn(2, 5, 12)
    state = layer(x)[1]
    for name, part in zip(state._fields, state, strict=True):
        if part is not None:
            with pytest.raises(ValueError, match=f"state.{name} is of type {dtype}, expected a floating point type"):
                layer(x, state=state._replace(**{name: part.to(dtype)}))
