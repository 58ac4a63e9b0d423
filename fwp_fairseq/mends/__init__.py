"""Mends faults of fairseq.

Faults that end in an error are mended for every model. Mends that change results which fairseq computes without an
error take effect only in processes that have built a model of this plugin.

Each file mends one fault when it is imported, and importing this package imports all of them. docs/reliability.md lists
them, each with what users see without it, why, and the test that reproduces it.
"""

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from unittest import mock

from .. import compat  # noqa: F401  (fairseq has to run before it can be mended)

# isort: split
from fairseq import checkpoint_utils
from fairseq.models import BaseFairseqModel

# The classes of this plugin's models that this process has built.
_BUILT: set[type] = set()


def around(owner, name: str, ours: bool = False) -> Callable:
    """Replaces ``owner.name`` by the decorated function, which receives the original as an additional first argument.

    With ``ours``, the original is called until this process has built a model of this plugin.
    """

    def put(function: Callable) -> Callable:
        old = getattr(owner, name)

        @functools.wraps(old, updated=())
        def new(*args, **kwargs):
            return old(*args, **kwargs) if ours and not _BUILT else function(old, *args, **kwargs)

        setattr(owner, name, new)
        return function

    return put


def is_ours(model: type) -> bool:
    """Returns True if a class of models is one of this plugin."""
    return model.__module__.startswith(f"{__package__.partition('.')[0]}.")


@around(BaseFairseqModel, "__init__")
def initialize_and_note(initialize, self, *args, **kwargs):
    initialize(self, *args, **kwargs)
    if is_ours(type(self)):
        _BUILT.add(type(self))


def program(name: str):
    """Returns the module of ``fairseq_cli`` if this process runs it, else None; ``python -m`` calls it ``__main__``."""
    main, name = sys.modules["__main__"], f"fairseq_cli.{name}"
    return main if getattr(main.__spec__, "name", None) == name else sys.modules.get(name)


@contextlib.contextmanager
def read_states(change: Callable[[dict], dict]) -> Iterator[None]:
    """Makes fairseq use ``change(state)`` instead of each checkpoint state that it reads within the block."""
    read = checkpoint_utils.load_checkpoint_to_cpu
    with mock.patch.object(checkpoint_utils, "load_checkpoint_to_cpu", lambda *a, **k: change(read(*a, **k))):
        yield


# The order matters: if two files wrap the same function of fairseq, the later one is the outer one.
for _file in (
    "literals", "saving", "loading", "archives", "layers_to_keep", "adaptive_softmax", "binarised_data",
    "text_encoding", "dictionaries", "long_lines", "resuming", "resumed_counters", "context_window", "data_position",
    "nan_gradients", "overflow", "moving_average", "multilingual_task", "hydra_architectures", "prepared_models",
    "processes", "bfloat16", "retained_dropout", "repeated_ngrams", "diverse_beams", "logs",
):  # fmt: skip
    importlib.import_module(f"{__name__}.{_file}")
