"""Ways to run an experiment in the process of a test."""

import pytest

from tests.pages import ROOT


@pytest.fixture
def real_root(forked_python, monkeypatch):
    """Recipes run the real tools in this repository, in processes that are forked, with one thread."""
    from scripts.common import commands, program

    tools = {name: [str(forked_python.program), *words] for name, (_, *words) in commands.TOOLS.items()}
    monkeypatch.setattr(commands, "TOOLS", tools)
    monkeypatch.setattr(program, "stop_on_signals", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(ROOT)
