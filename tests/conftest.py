"""Seeds, threads and hypothesis profiles; the last lines of a run say which backends really served it, on which device.

``FWP_REQUIRE=native,cuda`` turns a skip for lack of one of them into a failure. ``FWP_SHARD``: see
:mod:`tests.shards`.
"""

import os
import random

import hypothesis
import numpy as np
import pytest
import torch

from fwp_fairseq.ops import backends
from tests import requirements, shards

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=40, database=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

SHARD = pytest.StashKey[shards.Shard]()


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(name): needs a backend or device, native or cuda; see FWP_REQUIRE")
    unknown = requirements.REQUIRED - set(requirements.KNOWN)
    if unknown:
        raise pytest.UsageError(f"FWP_REQUIRE names {', '.join(sorted(unknown))}; known: native, cuda")
    try:
        config.stash[SHARD] = shards.here()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_collection_modifyitems(config, items):
    """Deselects tests of a rule on a backend that does not have it, and those of other shards."""
    kept, left_out = [], []
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        backend, rule = parameters.get("backend"), parameters.get("rule")
        known = backend in backends.BACKENDS and rule in requirements.RULES
        chosen = config.stash[SHARD].holds(item.nodeid) and (not known or requirements.serves(backend, rule))
        (kept if chosen else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_runtest_setup(item):
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            reason = requirements.missing(name)
            if reason and name in requirements.REQUIRED:
                pytest.fail(f"FWP_REQUIRE wants {name}: {reason}", pytrace=False)
            if reason:
                pytest.skip(f"needs {name}: {reason}")


@pytest.fixture(autouse=True)
def _seed():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter):
    counts = [f"{backend} on {device} {calls}" for (backend, device), calls in sorted(backends.served.items())]
    terminalreporter.write_line(f"calls served by backend in this process: {', '.join(counts) or 'none'}")
