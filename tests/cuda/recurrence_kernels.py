"""Calls the recurrences' kernels of csrc/cuda on the CPU shim with tensors."""

import ctypes
from ctypes import c_char_p, c_int64, c_void_p

import torch
from torch import Tensor

from tests.cuda.kernels import _checked as checked
from tests.cuda.kernels import _Rows as Rows
from tests.cuda.kernels import empty_rows
from tests.cuda.shim import CUDA, INSTANCES, library

# In the order of their numbers in C++.
KERNELS = ("forward", "backward")
LSTM_KERNELS = ("lstm_forward", "lstm_backward")


class _Call(ctypes.Structure):
    """The struct of csrc/common/recurrence_call.h."""

    _fields_ = (
        *((name, c_int64) for name in ("batch", "heads", "length", "d")),
        *((name, Rows) for name in ("z", "k", "v", "beta", "key_padding_mask")),
        *((name, c_void_p) for name in ("initial_R", "initial_y")),
        *((name, Rows) for name in ("out", "written")),
        *((name, c_void_p) for name in ("R", "y")),
        *((name, Rows) for name in ("found", "found_written", "grad_out")),
        *((name, c_void_p) for name in ("last_R", "grad_R", "grad_y")),
        *((name, Rows) for name in ("grad_z", "grad_k", "grad_v", "grad_beta")),
        *((name, c_void_p) for name in ("grad_initial_R", "grad_initial_y")),
    )


class _LstmCall(_Call):
    """The struct of csrc/common/recurrence_call.h."""

    _fields_ = (
        ("initial_c", c_void_p),
        *((name, Rows) for name in ("cells", "gates")),
        ("c", c_void_p),
        *((name, Rows) for name in ("found_cells", "found_gates")),
        *((name, c_void_p) for name in ("grad_c", "grad_initial_c")),
    )


_FIELDS = dict((*_Call._fields_, *_LstmCall._fields_))


def kernels() -> ctypes.CDLL:
    instances = (INSTANCES / "recurrence.cu", INSTANCES / "lstm.cu")
    loaded = library(CUDA / "shim" / "recurrence_library.cpp", *instances)
    loaded.fwp_shim_recurrence.restype = loaded.fwp_shim_lstm.restype = c_char_p
    assert loaded.fwp_shim_recurrence_call_size() == ctypes.sizeof(_Call)
    assert loaded.fwp_shim_lstm_call_size() == ctypes.sizeof(_LstmCall)
    return loaded


def _run(kernel: str, like: Tensor, d: int, schedule: int, **given) -> None:
    """``like`` is of the call's batch, length and heads; rows have three dimensions or more and a stride of 1 last."""
    of_lstm = kernel in LSTM_KERNELS
    call = (_LstmCall if of_lstm else _Call)(batch=like.shape[0], length=like.shape[1], heads=like.shape[2], d=d)
    for name, x in given.items():
        if _FIELDS[name] is Rows:
            setattr(call, name, Rows.of(x))
        elif isinstance(x, Tensor):
            assert x.is_contiguous()
            setattr(call, name, x.data_ptr())
        elif x is not None:
            setattr(call, name, x)
    number = (LSTM_KERNELS if of_lstm else KERNELS).index(kernel)
    run = kernels().fwp_shim_lstm if of_lstm else kernels().fwp_shim_recurrence
    checked(run(number, ctypes.byref(call), schedule))


def _states(x: Tensor, d: int) -> tuple[Tensor, Tensor]:
    batch, _, heads = x.shape[:3]
    return torch.full((batch, heads, d, d), float("nan")), torch.full((batch, heads, d), float("nan"))


def recur(z, k, v, beta, pads=None, R=None, y=None, *, schedule=0) -> tuple[Tensor, ...]:
    """As ``torch.ops.fwp.recur``."""
    d, out, written = k.shape[3], empty_rows(k, k.shape[3]), empty_rows(k, k.shape[3])
    last_R, last_y = _states(k, d)
    _run(
        "forward", k, d, schedule, z=z, k=k, v=v, beta=beta, key_padding_mask=pads, initial_R=R, initial_y=y, out=out,
        written=written, R=last_R, y=last_y,
    )  # fmt: skip
    return out, last_R, last_y, written


def recur_backward(grad_out, grad_R, grad_y, found, last_R, written, k, v, beta, pads=None, y=None, *, schedule=0):
    """As ``torch.ops.fwp.recur_backward``."""
    d = k.shape[3]
    gradients = {f"grad_{name}": empty_rows(k, d) for name in "zkv"} | {"grad_beta": empty_rows(beta, 1).squeeze(3)}
    R, of_y = _states(k, d)
    _run(
        "backward", k, d, schedule, k=k, v=v, beta=beta, key_padding_mask=pads, initial_y=y, found=found,
        found_written=written, grad_out=grad_out, last_R=last_R, grad_R=grad_R, grad_y=grad_y, grad_initial_R=R,
        grad_initial_y=of_y, **gradients,
    )  # fmt: skip
    return *gradients.values(), R, of_y


def recur_lstm(z, k, v, beta, pads=None, R=None, h=None, c=None, *, schedule=0) -> tuple[Tensor, ...]:
    """As ``torch.ops.fwp.recur_lstm``."""
    d, of_net = k.shape[3], k[:, :, : k.shape[2] // 3]
    out, cells, gates, written = (empty_rows(x, d) for x in (of_net, of_net, k, k))
    (last_R, _), (_, last_h), (_, last_c) = _states(k, d), _states(of_net, d), _states(of_net, d)
    _run(
        "lstm_forward", of_net, d, schedule, z=z, k=k, v=v, beta=beta, key_padding_mask=pads, initial_R=R, initial_y=h,
        initial_c=c, out=out, written=written, cells=cells, gates=gates, R=last_R, y=last_h, c=last_c,
    )  # fmt: skip
    return out, last_R, last_h, last_c, cells, gates, written


def recur_lstm_backward(
    grad_out, grad_R, grad_h, grad_c, found, cells, gates, last_R, written, k, v, beta, pads=None, h=None, c=None,
    *, schedule=0,
):  # fmt: skip
    """As ``torch.ops.fwp.recur_lstm_backward``."""
    d, of_net = k.shape[3], k[:, :, : k.shape[2] // 3]
    gradients = {f"grad_{name}": empty_rows(k, d) for name in "zkv"} | {"grad_beta": empty_rows(beta, 1).squeeze(3)}
    (R, _), (_, of_h), (_, of_c) = _states(k, d), _states(of_net, d), _states(of_net, d)
    _run(
        "lstm_backward", of_net, d, schedule, k=k, v=v, beta=beta, key_padding_mask=pads, initial_y=h, initial_c=c,
        found=found, found_cells=cells, found_gates=gates, found_written=written, grad_out=grad_out, last_R=last_R,
        grad_R=grad_R, grad_y=grad_h, grad_c=grad_c, grad_initial_R=R, grad_initial_y=of_h, grad_initial_c=of_c,
        **gradients,
    )  # fmt: skip
    return *gradients.values(), R, of_h, of_c
