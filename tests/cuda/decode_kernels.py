"""Decoding with the kernels of csrc/cuda on the CPU shim, as csrc/cuda/decode_launch.cpp calls them on a GPU."""

import ctypes
from ctypes import c_char_p, c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from fwp_fairseq.ops.native import kernel_of
from tests.cuda import kernels as operator
from tests.cuda.kernels import RULES, TYPES, empty_rows
from tests.cuda.kernels import _checked as checked
from tests.cuda.kernels import _Rows as Rows
from tests.cuda.shim import CUDA, INSTANCES, library


class _Call(ctypes.Structure):
    """The struct of csrc/cuda/kernels/decode_call.h."""

    _fields_ = (
        *((name, c_int) for name in ("rule", "map", "type", "nu", "m")),
        ("projection", c_void_p),
        ("input_scale", c_float),
        *((name, c_int) for name in ("normalize_features", "normalize_output")),
        ("eps", c_float),
        *((name, c_int) for name in ("rows", "heads", "tokens", "stored", "states", "count")),
        *((name, c_int) for name in ("d_key", "d_value", "d_dot", "d_cached", "token")),
        *((name, Rows) for name in ("q", "k", "v", "beta", "alpha", "key_padding_mask", "out")),
        *((name, c_void_p) for name in ("keys", "written", "strengths")),
        ("aligned", c_int),
        ("ancestors", c_void_p),
        ("ancestors_ld", c_int64),
        *((name, c_void_p) for name in ("state_rows", "W", "z", "new_W", "new_z")),
    )


def pointer(x: Tensor | None) -> int | None:
    assert x is None or x.is_contiguous()
    return None if x is None else x.data_ptr()


def kernels() -> ctypes.CDLL:
    sources = sorted(INSTANCES.glob("decode_*.cu"))
    loaded = library(CUDA / "shim" / "decode_library.cpp", *sources)
    for function in (loaded.fwp_shim_decode, loaded.fwp_shim_fold):
        function.restype = c_char_p
    assert loaded.fwp_shim_decode_call_size() == ctypes.sizeof(_Call)
    return loaded


def _call(decoding, cache, d_key: int) -> _Call:
    phi, (capacity, stored, heads, d_cached), d_value = decoding.feature_map, cache.keys.shape, cache.written.shape[3]
    whole = d_cached % 8 == d_value % 8 == 0 and cache.keys.data_ptr() % 16 == cache.written.data_ptr() % 16 == 0
    table = cache.ancestors
    return _Call(
        rule=RULES.index(decoding.rule), map=operator.MAPS.index(kernel_of(phi)), type=TYPES.index(cache.keys.dtype),
        nu=getattr(phi, "nu", 0), m=getattr(phi, "m", 0), projection=pointer(cache.projection),
        input_scale=getattr(phi, "scale", 1.0),
        normalize_features=decoding.normalize_features, normalize_output=decoding.normalize_output, eps=decoding.eps,
        rows=len(cache.rows) if table is None else len(table), heads=heads, stored=stored,
        states=0 if cache.W is None else len(cache.W), count=cache.count, d_key=d_key, d_value=d_value,
        d_dot=d_key if phi is None else phi.d_dot, d_cached=d_cached, keys=pointer(cache.keys),
        written=pointer(cache.written), strengths=pointer(cache.strengths), aligned=int(whole),
        ancestors=pointer(table), ancestors_ld=0 if table is None else capacity, state_rows=pointer(cache.rows),
        W=pointer(cache.W), z=pointer(cache.z),
    )  # fmt: skip


class Shim:
    """An implementation of :mod:`fwp_fairseq.ops.decoding`, like ``decoding_native``."""

    def __init__(self, schedule: int = 0):
        self.schedule = schedule

    def unsupported_reasons(self, decoding, x: Tensor) -> list[str]:
        return []

    def cached_type(self, x: Tensor) -> torch.dtype:
        return x.dtype

    def decode(self, decoding, cache, q, k=None, v=None, beta=None, alpha=None, key_padding_mask=None) -> Tensor:
        call = _call(decoding, cache, q.shape[3])
        out = empty_rows(q, call.d_value)
        call.tokens = q.shape[1]
        given = {"q": q, "k": k, "v": v, "beta": beta, "alpha": alpha, "key_padding_mask": key_padding_mask, "out": out}
        for name, x in given.items():
            setattr(call, name, Rows.of(x))
        checked(kernels().fwp_shim_decode(ctypes.byref(call), self.schedule))
        return out

    def fold(self, decoding, cache) -> tuple[Tensor, Tensor | None]:
        call = _call(decoding, cache, cache.keys.shape[3])
        W = torch.full((call.rows, call.heads, call.d_dot, call.d_value), float("nan"))
        z = W[..., 0].clone() if decoding.normalize_output else None
        call.new_W, call.new_z = pointer(W), pointer(z)
        checked(kernels().fwp_shim_fold(ctypes.byref(call), self.schedule))
        return W, z
