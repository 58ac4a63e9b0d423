"""Runs python -m scripts.results in this process."""

from functools import partial

import pytest

from scripts.results.__main__ import main
from tests.commands import refusal, runner


@pytest.fixture
def results(capsys):
    return runner(capsys, main)


@pytest.fixture
def refused(results):
    return partial(refusal, results, "scripts.results")
