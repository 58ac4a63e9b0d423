"""Calls the kernels of csrc/cuda on the CPU shim with tensors, as csrc/cuda/launch.cpp does on a GPU."""

import ctypes
import re
from ctypes import c_char_p, c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from tests.cuda.shim import CUDA, INSTANCES, library

# The names in the order of their numbers in C++.
_NAMES = (CUDA.parent / "common" / "maps.h").read_text()
_ALL, MAPS = (re.findall(r"EACH\((\w+)\)", line) for line in re.findall(r"#define FWP_\w+\(EACH\) (EACH.*)", _NAMES))
_SERVED = re.search(r"#define FWP_CUDA_RULES.*", (CUDA / "kernels" / "call.h").read_text())[0]
RULES = re.findall(r"EACH\((\w+)\)", _SERVED)
assert _ALL[: len(RULES)] == RULES  # the place of a rule is its number
TYPES = (torch.float16, torch.bfloat16, torch.float32)


class _Rows(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("batch", c_int64), ("time", c_int64), ("head", c_int64), ("aligned", c_int))

    @classmethod
    def of(cls, x: Tensor | None) -> "_Rows":
        if x is None:
            return cls()
        strides = (*x.stride(), 0)[:3]
        whole = x.dim() == 4 and x.shape[-1] % 8 == 0 and all(stride % 8 == 0 for stride in strides)
        return cls(x.data_ptr(), *strides, int(whole and x.data_ptr() % 16 == 0))


_ROWS = ("q", "k", "v", "beta", "alpha", "key_padding_mask")
_GRADIENTS = ("grad_q", "grad_k", "grad_v", "grad_beta", "grad_alpha")


class _Call(ctypes.Structure):
    """The struct of csrc/cuda/kernels/call.h."""

    _fields_ = (
        *((name, c_int) for name in ("rule", "map", "type", "nu", "m")),
        ("projection", c_void_p),
        ("input_scale", c_float),
        *((name, c_int) for name in ("causal", "normalize_features", "normalize_output")),
        ("eps", c_float),
        *((name, c_int) for name in ("batch", "heads", "targets", "sources", "d_key", "d_value", "d_dot")),
        *((name, c_int) for name in ("segment", "together", "base_rows", "base_end", "resident")),
        *((name, _Rows) for name in _ROWS),
        *((name, c_void_p) for name in ("initial_W", "initial_z")),
        ("out", _Rows),
        *((name, c_void_p) for name in ("W", "z")),
        ("checkpoints", c_int),
        *((name, c_void_p) for name in ("between_W", "between_z")),
        ("feature_vectors", c_int),
        *((name, c_void_p) for name in ("features_q", "features_k", "scales", "inverses", "missing")),
        ("grad_out", _Rows),
        *((name, c_void_p) for name in ("grad_W", "grad_z")),
        *((name, _Rows) for name in _GRADIENTS),
        *((name, c_void_p) for name in ("grad_initial_W", "grad_initial_z")),
    )


class _Pieces(_Call):
    """The struct of csrc/cuda/kernels/pieces.h."""

    _fields_ = (
        ("workspace", c_void_p),
        ("resident_walk", c_int),
        *((name, c_void_p) for name in ("gradients_W", "gradients_z", "notes")),
        *((name, c_int) for name in ("note_columns", "note_blocks")),
    )


def kernels() -> ctypes.CDLL:
    loaded = library(CUDA / "shim" / "library.cpp", *sorted(INSTANCES.glob("*.cu")))
    for function in (loaded.fwp_shim_forward, loaded.fwp_shim_backward):
        function.restype = c_char_p
    for function in (loaded.fwp_shim_workspace, loaded.fwp_shim_forward_workspace):
        function.restype = c_int64
    assert loaded.fwp_shim_call_size() == ctypes.sizeof(_Call)
    assert loaded.fwp_shim_pieces_size() == ctypes.sizeof(_Pieces)
    return loaded


def slices(call: _Call) -> int:
    """The number of blocks of the forward that share a head."""
    return kernels().fwp_shim_slices(ctypes.byref(call))


def _pointer(x: Tensor | None) -> int | None:
    if x is not None:
        assert x.is_contiguous() and x.dtype == torch.float32
    return None if x is None else x.data_ptr()


def make_call(
    q, k, v, beta=None, alpha=None, *, rule, feature_map, causal, normalize_features, normalize_output, eps=1e-6,
    key_padding_mask=None, W=None, z=None,
):  # fmt: skip
    """Makes a call without outputs; ``feature_map`` is None or the package's. The caller keeps the tensors alive."""
    name = "identity" if feature_map is None else feature_map.name
    d_dot = q.shape[-1] if feature_map is None else feature_map.d_dot
    assert all(x is None or x.dtype == torch.float32 for x in (beta, alpha))
    return _Pieces(
        rule=RULES.index(rule), map=MAPS.index(name), type=TYPES.index(q.dtype), nu=getattr(feature_map, "nu", 0),
        m=getattr(feature_map, "m", 0),
        projection=_pointer(feature_map.projection) if name == "favor" else None,
        input_scale=feature_map.scale if name == "favor" else 1.0,
        causal=causal, normalize_features=normalize_features, normalize_output=normalize_output, eps=eps,
        batch=k.shape[0], heads=k.shape[2], targets=q.shape[1], sources=k.shape[1], d_key=k.shape[3],
        d_value=v.shape[3], d_dot=d_dot, q=_Rows.of(q), k=_Rows.of(k), v=_Rows.of(v), beta=_Rows.of(beta),
        alpha=_Rows.of(alpha), key_padding_mask=_Rows.of(key_padding_mask), initial_W=_pointer(W),
        initial_z=_pointer(z),
    )  # fmt: skip


# The shared memory that a block may have on an H100. With less, 65 to 128 positions take several segments too.
SHARED_MEMORY = 227 * 1024


def _states(call: _Pieces) -> tuple[Tensor, Tensor | None]:
    """Allocates memory for the states W and z of the call's heads."""
    W = torch.full((call.batch, call.heads, call.d_dot, call.d_value), float("nan"))
    return W, W[..., 0].clone() if call.normalize_output else None


def _fit(call: _Pieces, *, backward: bool, limit: int) -> None:
    """Sets the fields of the call that depend on the device, as launch.cpp does."""
    loaded = kernels()
    (loaded.fwp_shim_fit_backward if backward else loaded.fwp_shim_fit)(ctypes.byref(call), limit)


def segmented(call: _Pieces, *, backward: bool, limit: int) -> bool:
    """Does the same as :func:`_fit`, and returns whether the call has several segments."""
    _fit(call, backward=backward, limit=limit)
    return bool(kernels().fwp_shim_segmented(ctypes.byref(call)))


def bytes_needed(call: _Pieces, *, backward: bool, limit: int) -> int:
    """The most shared memory that a block requests in any launch of the call."""
    _fit(call, backward=backward, limit=limit)
    loaded = kernels()
    return (loaded.fwp_shim_bytes_backward if backward else loaded.fwp_shim_bytes)(ctypes.byref(call))


def workspace_of(call: _Pieces, group: int | None = None) -> int:
    """Sets how many segments a group of the backward has, and returns the floats of its workspace."""
    kernels().fwp_shim_group(ctypes.byref(call))
    call.checkpoints = group or call.checkpoints
    return kernels().fwp_shim_workspace(ctypes.byref(call))


def forward_workspace(call: _Pieces, multiprocessors: int) -> int:
    """The floats of the workspace of a forward in pieces; 0 where it is done in one launch."""
    return kernels().fwp_shim_forward_workspace(ctypes.byref(call), multiprocessors)


def holds_all_features(call: _Call, *, backward: bool, limit: int) -> bool:
    """Whether a block holds all features of FAVOR+ at once."""
    _fit(call, backward=backward, limit=limit)
    return bool(call.together)


def _checked(error: bytes | None) -> None:
    if error:
        raise RuntimeError(error.decode())


def empty_rows(x: Tensor, width: int) -> Tensor:
    return torch.full((*x.shape[:3], width), float("nan"), dtype=x.dtype)


def forward(
    q, k, v, beta=None, alpha=None, *, return_state=True, schedule=0, limit=SHARED_MEMORY, multiprocessors=0, **options
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """With ``multiprocessors``, calls that leave most of them idle are done in pieces."""
    call = make_call(q, k, v, beta, alpha, **options)
    out = empty_rows(q, v.shape[3])
    W, z = _states(call) if return_state else (None, None)
    call.out, call.W, call.z = _Rows.of(out), _pointer(W), _pointer(z)
    if segmented(call, backward=False, limit=limit) and not (return_state or call.resident):
        between = _states(call)
        call.W, call.z = map(_pointer, between)
    workspace = torch.empty(0)
    if floats := forward_workspace(call, multiprocessors):
        workspace = torch.full((floats + 1000,), float("nan"))
        kernels().fwp_shim_place_pieces(ctypes.byref(call), c_void_p(workspace.data_ptr()))
    _checked(kernels().fwp_shim_forward(ctypes.byref(call), schedule))
    assert workspace[-1000:].isnan().all(), "written behind the room that was asked for"
    return out, W, z


def backward(
    grad_out, q, k, v, beta=None, alpha=None, *, grad_W=None, grad_z=None, schedule=0, limit=SHARED_MEMORY,
    W=None, z=None, group=None, **options,
) -> dict:  # fmt: skip
    """Returns the gradients of the given inputs, by name. ``group``: how many segments a group has, if not its own."""
    call = make_call(q, k, v, beta, alpha, W=W, z=z, **options)
    found = {name: empty_rows(x, x.shape[3]) for name, x in {"q": q, "k": k, "v": v}.items()}
    found |= {name: empty_rows(x, 1).squeeze(3) for name, x in {"beta": beta, "alpha": alpha}.items() if x is not None}
    for name, x in {"W": W, "z": z}.items():
        if x is not None:
            found[name] = torch.full_like(x, float("nan"))
    call.grad_out, call.grad_W, call.grad_z = _Rows.of(grad_out), _pointer(grad_W), _pointer(grad_z)
    call.grad_q, call.grad_k, call.grad_v = (_Rows.of(found[name]) for name in ("q", "k", "v"))
    call.grad_beta, call.grad_alpha = (_Rows.of(found.get(name)) for name in ("beta", "alpha"))
    call.grad_initial_W, call.grad_initial_z = _pointer(found.get("W")), _pointer(found.get("z"))
    workspace = torch.empty(0)
    if segmented(call, backward=True, limit=limit):
        workspace = torch.full((workspace_of(call, group) + 1000,), float("nan"))
        call.workspace = workspace.data_ptr()
    _checked(kernels().fwp_shim_backward(ctypes.byref(call), schedule))
    assert workspace[-1000:].isnan().all(), "written behind the room that was asked for"
    return found
