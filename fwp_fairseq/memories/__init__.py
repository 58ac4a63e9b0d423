"""Memories of attention, each in its own file; :data:`MEMORIES` lists the subclasses of :class:`.memory.Memory`.

:mod:`.matrix` is one fast weight matrix per head, :mod:`.window` reads the latest positions by softmax and all earlier
ones from a matrix, and :mod:`.fast_nets` are nets whose weights are written at every position.
"""

import importlib
import pkgutil

from ..ops.state import State, select
from ..option import Option
from .fast_nets import FAST_NETS
from .features import Features
from .matrix import Matrix
from .memory import Memory, Sizes

__all__ = ["FAST_NETS", "MEMORIES", "Features", "Matrix", "Memory", "Sizes", "State", "every_option", "select"]

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")


def _with_subclasses(cls: type) -> list[type]:
    return [cls, *(part for subclass in cls.__subclasses__() for part in _with_subclasses(subclass))]


MEMORIES: list[type[Memory]] = _with_subclasses(Memory)[1:]


def every_option() -> list[Option]:
    """Returns the option rows of all memories, without duplicates."""
    return list({row.name: row for memory in MEMORIES for row in memory.options_read()}.values())
