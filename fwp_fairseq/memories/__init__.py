"""Memories of attention, a file each, and the function that chooses among them.

``matrix`` is one fast weight matrix per head, ``window`` the latest positions in front of a matrix, ``fast_nets`` are
nets whose weights are written at every position. :mod:`.memory` has their base class.
"""

from ..ops.state import State, select
from ..options import SiteOptions
from .fast_nets import FAST_NETS
from .features import Features
from .matrix import Matrix
from .memory import Memory, Sizes
from .window import Window

__all__ = ["FAST_NETS", "Features", "Memory", "Sizes", "State", "build_memory", "select"]


def build_memory(options: SiteOptions, features: Features, sizes: Sizes) -> Memory:
    """Builds the memory that the options of a site choose; its features exist already, because they are drawn first."""
    if options.window is not None:
        return Window(options, features, sizes)
    if options.has_fast_net:
        return FAST_NETS[options.fast_net](options, features, sizes)
    return Matrix(options, features, sizes)
