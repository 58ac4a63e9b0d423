"""Sets seeds, threads and hypothesis profiles, and sorts the tests for pytest-xdist.

``FWP_REQUIRE=native,cuda`` makes tests fail that would be skipped for lack of one of these.
"""

import gc
import os
import random

import hypothesis
import numpy as np
import pytest
import torch

from fwp_fairseq.ops import RULES
from tests import forked, requirements, shared

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=40, database=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config):
    config.addinivalue_line("markers", "needs(name): needs a backend or device, native or cuda; see FWP_REQUIRE")
    config.addinivalue_line("markers", "slow: takes more than about two seconds; scripts/test.sh --quick leaves it out")
    if not config.pluginmanager.hasplugin("xdist"):
        config.addinivalue_line("markers", "xdist_group(name): see pytest-xdist")
    else:
        config.option.loadscopereorder = False  # pytest_collection_modifyitems has sorted the groups
    unknown = requirements.REQUIRED - set(requirements.KNOWN)
    if unknown:
        raise pytest.UsageError(f"FWP_REQUIRE names {', '.join(sorted(unknown))}; known: native, cuda")
    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config, items):
    """Groups and sorts tests for pytest-xdist.

    Tests of one group, which share a costly fixture of their file, run in one process. Groups and slow tests come
    first, so that at the end no process works long while the others have nothing to do.
    """
    for item in items:
        if any(found[-1].scope == "module" for found in item._fixtureinfo.name2fixturedefs.values()):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    result = yield  # in which other files mark tests as slow
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not any(map(item.get_closest_marker, ("slow", "xdist_group"))))
    return result


def pytest_collection_finish():
    """Excludes everything imported so far from garbage collection, which would visit it again and again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            reason = requirements.missing(name)
            if reason and name in requirements.REQUIRED:
                pytest.fail(f"FWP_REQUIRE wants {name}: {reason}", pytrace=False)
            if reason:
                pytest.skip(f"needs {name}: {reason}")
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    backend, rule = parameters.get("backend"), parameters.get("rule")
    if backend in requirements.TESTED and rule in RULES and not requirements.serves(backend, rule):
        pytest.skip(f"the backend {backend} does not have the rule {rule}")


@pytest.fixture(scope="session")
def forked_python(tmp_path_factory) -> forked.Python:
    """Runs Python in processes that need not import torch and fairseq."""
    with forked.server(shared.folder(tmp_path_factory) / "forked") as found:
        yield found


@pytest.fixture(autouse=True)
def _seed():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
