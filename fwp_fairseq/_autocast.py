"""Computing in the types that tensors have, also where the caller's autocast would change them."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(like: Tensor) -> AbstractContextManager:
    """A context without autocast on the device of ``like``.

    Where none is active it is one that does nothing, which takes a tenth of the time: a decoding step enters it dozens
    of times.
    """
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
