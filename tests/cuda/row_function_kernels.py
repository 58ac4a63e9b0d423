"""Calls the functions of rows of csrc/cuda on the CPU shim with tensors."""

import ctypes
from ctypes import c_char_p, c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from tests.cuda.kernels import _checked as checked
from tests.cuda.shim import CUDA, INSTANCES, library

# In the order of their numbers in C++.
FUNCTIONS = ("softmax_pair", "to_length_one", "elu_to_length_one", "to_rms_one")
_WARPS = 4  # row_warps of csrc/cuda/kernels/row_functions_launch.h


class _Dim(ctypes.Structure):
    """The struct of csrc/common/row_functions.h."""

    _fields_ = (("size", c_int64), ("strides", c_int64 * 3))


class _Call(ctypes.Structure):
    """The struct of csrc/cuda/kernels/row_functions_launch.h."""

    _fields_ = (
        *((name, c_int) for name in ("function", "backward")),
        *((name, c_int64) for name in ("rows", "n")),
        ("eps", c_float),
        *((name, c_int) for name in ("blocks", "dims")),
        ("dim", _Dim * 3),
        *((name, c_void_p) for name in ("x", "beside", "result")),
    )


def kernels() -> ctypes.CDLL:
    loaded = library(CUDA / "shim" / "row_function_library.cpp", INSTANCES / "row_functions.cu")
    loaded.fwp_shim_row_function.restype = c_char_p
    assert loaded.fwp_shim_row_function_call_size() == ctypes.sizeof(_Call)
    return loaded


def run(name: str, x: Tensor, beside: Tensor | None = None, *, eps=0.0, schedule=0, blocks=0) -> Tensor:
    """The function ``name`` of x, up to three dimensions of rows; with ``beside``, its backward for this gradient.

    ``blocks``: how many there are, if not enough for all rows at once.
    """
    backward, n = beside is not None, x.shape[-1]
    if name == "softmax_pair":
        result = x.new_full((*x.shape[:-1], n // 2 if backward else 2 * n), float("nan"))
        n = n // 2 if backward else n
    else:
        result = torch.full_like(x, float("nan"), memory_format=torch.contiguous_format)
    beside = x if beside is None else beside
    rows = x.shape[:-1].numel()
    call = _Call(
        function=FUNCTIONS.index(name), backward=backward, rows=rows, n=n, eps=eps,
        blocks=blocks or -(-rows // _WARPS), dims=x.dim() - 1, x=x.data_ptr(), beside=beside.data_ptr(),
        result=result.data_ptr(),
    )  # fmt: skip
    for i in range(x.dim() - 1):  # the innermost first
        outer = x.dim() - 2 - i
        strides = (tensor.stride(outer) for tensor in (x, beside, result))
        call.dim[i] = _Dim(x.shape[outer], (c_int64 * 3)(*strides))
    checked(kernels().fwp_shim_row_function(ctypes.byref(call), schedule))
    return result
