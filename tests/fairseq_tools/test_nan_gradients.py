"""A training whose gradients become NaN reports it in one line."""

import re

import pytest

STEPS = ["--disable-validation", "--no-save", "--max-update"]


@pytest.mark.parametrize("attention", ["mixed", "favor"])
def test_nan_names_the_update_and_what_to_change(tools, attention):
    found = tools.train("nan", *tools.attention[attention], *STEPS, 9, "--lr", 1e30, "--warmup-updates", 1)
    assert re.search(r"training ended in update \d: gradients are Nan/Inf.*--lr.*--clip-norm", found.error)
    assert "detected in output of" in found.out  # fairseq's search for the module that was the first to fail
