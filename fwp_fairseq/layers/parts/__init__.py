"""Modules that options add to attention with a memory, one in each file; :data:`PARTS` lists the subclasses of Part."""

import importlib
import pkgutil

from ...options import OPTIONS
from .part import Part

__all__ = ["PARTS", "Part"]

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

# In the order of the table of options, which determines the order of attention's parameters.
PARTS: list[type[Part]] = sorted(Part.__subclasses__(), key=lambda part: list(OPTIONS).index(part.option))
