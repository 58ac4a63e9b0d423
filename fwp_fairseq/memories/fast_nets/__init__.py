"""Fast nets, which replace the fast weight matrix, each in its own file; :data:`FAST_NETS` lists them by name."""

import importlib
import pkgutil

from .fast_net import FastNet

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

FAST_NETS: dict[str, type[FastNet]] = {net.name: net for net in FastNet.nets()}

__all__ = ["FAST_NETS", "FastNet"]
