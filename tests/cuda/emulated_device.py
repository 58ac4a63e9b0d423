"""A pytest plugin for machines without a GPU: the CPU calls itself a CUDA device, and tests that need one run on it.

``python -m pytest -p tests.cuda.emulated_device tests/cuda -m needs`` compiles csrc/cuda/*.cpp as they are, with
stand-ins for three CUDA headers (shim/include) and the kernels on the shim, and registers them with torch. A
CUDA tensor is then a wrapper of a CPU tensor; operators of ``fwp`` get what stands for CUDA in torch's dispatcher, all
others what stands for the CPU. So Python's choices by device, autograd, the dispatcher's tables and the glue are those
of a GPU machine. What it cannot show: anything asynchronous, streams, CUDA graphs, the real allocator.

It changes the whole process, so test_emulated_device.py starts one, in which the real library is not loaded.
"""

import ctypes
import os

from tests.cuda import compiled, ptx
from tests.cuda.compiled import CUDA, INSTANCES, SHIM, path

# Before torch is imported: it looks for CUDA once.
_GLUE = (SHIM / "emulated_device.cpp", *sorted(CUDA.glob("*.cpp")))
_TRANSLATED = ptx.sources() if os.environ.get("FWP_SHIM_PTX") == "1" else ()
_PATH = path(*sorted(INSTANCES.glob("*.cu")), *_TRANSLATED, glue=_GLUE)
_LIBRARY = ctypes.CDLL(str(_PATH))

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_map_only  # noqa: E402

from fwp_fairseq import _extension  # noqa: E402

_LIBRARY.fwp_shim_guard()
DEVICE = torch.device("cuda", 0)
_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
_BETWEEN_DEVICES = ("aten::copy_", "aten::_to_copy", "aten::index.Tensor", "aten::index_put_", "aten::_index_put_impl_")


class EmulatedTensor(torch.Tensor):
    """Says it is on a CUDA device; ``held`` is the CPU tensor that has the numbers."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor):
        found = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=DEVICE,
        )  # fmt: skip
        found.held = held
        return found

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})

    def tolist(self):  # torch's own refuses wrappers
        return self.held.tolist()

    def __repr__(self):
        return f"EmulatedTensor({self.held})"


class _Mode(TorchDispatchMode):
    """For what is asked of plain tensors or of none: ``x.to("cuda")``, ``torch.zeros(..., device="cuda")``."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


def _run(function, args: tuple, kwargs: dict):
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    lent = any(isinstance(x, EmulatedTensor) for x in tensors)
    device = kwargs.get("device")
    wrap = lent if device is None else torch.device(device).type == "cuda"
    if not lent and not wrap:
        return function(*args, **kwargs)
    ours, name = function.namespace == "fwp", function.name()
    if lent and not ours and not name.startswith(_BETWEEN_DEVICES):
        strangers = [x for x in tensors if x.dim() and not isinstance(x, EmulatedTensor)]
        if strangers:
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, found cuda:0 and cpu")

    def held(x: torch.Tensor) -> torch.Tensor:
        if isinstance(x, EmulatedTensor):
            return x.held
        return x.to("meta") if ours else x  # so that the glue sees another device

    given, named = tree_map_only(torch.Tensor, held, (args, kwargs))
    if device is not None:
        named["device"] = "cpu"
    out = function.redispatch(_KERNELS, *given, **named) if ours else function(*given, **named)
    if not wrap or any(out is x for x in tensors):
        return out
    out = tree_map_only(torch.Tensor, EmulatedTensor, out)
    return return_and_correct_aliasing(function, args, kwargs, out) if lent else out


def set_device(
    major: int = 9, minor: int = 0, shared_memory: int = 227 * 1024, multiprocessors: int = 132, missing: str = ""
) -> None:
    """What the emulated device answers: compute capability, the most shared memory of a block, multiprocessors.

    ``missing``: what it says if it has no code of the kernels.
    """
    _LIBRARY.fwp_shim_device(major, minor, shared_memory, multiprocessors, missing.encode())


def translated(started: bool = False) -> list[str]:
    """The kernels that run as nvcc has made them, where FWP_SHIM_PTX is 1; or those that have been started."""
    _LIBRARY.fwp_shim_translated.restype = ctypes.c_char_p
    return _LIBRARY.fwp_shim_translated(int(started)).decode().split()


def shared_bytes() -> int:
    """The shared memory that a block of the last launch had."""
    return _LIBRARY.fwp_shim_shared_bytes()


def executed() -> int:
    """The instructions that warps of translated kernels have executed since the last call."""
    _LIBRARY.fwp_shim_executed.restype = ctypes.c_uint64
    return _LIBRARY.fwp_shim_executed()


def watched(without: str = ""):
    """A context in which a race is an error; the barriers at the places ``without`` are left out."""
    return compiled.watched(_LIBRARY, without=without)


def barriers() -> set[tuple[str, str]]:
    """The barriers that watched kernels came to since the last call, kind and place."""
    return compiled.barriers(_LIBRARY)


def pytest_configure(config):
    real = _extension.status()
    assert not real.cuda, "the CUDA library is loaded: nothing is emulated beside it"
    reasons = {part: reason for part, reason in real.reasons.items() if part != "cuda"}
    emulated = _extension.ExtensionStatus({**real.libraries, "cuda": _PATH}, reasons)
    _extension.status = lambda: emulated
    torch.cuda.is_available = lambda: True
    torch.cuda._lazy_init, torch.cuda.current_device = lambda: None, lambda: 0
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a parameter cannot become a wrapper
    torch.cuda.get_rng_state, torch.cuda.set_rng_state = torch.get_rng_state, torch.set_rng_state
    _Mode().__enter__()
