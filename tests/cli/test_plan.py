"""What `fwp train` plans: validations of short trainings, and when it will be done."""

from datetime import datetime

import pytest

from fwp_fairseq.cli.recipe import Recipe
from fwp_fairseq.cli.train import expected_time

RECIPE = Recipe(100_000, [25] * 10_000, 200_000)  # an epoch is 100 batches of 2,500 tokens


@pytest.mark.parametrize("updates, every", [(120, 15), (499, 62), (7, 1)])
def test_trainings_of_few_epochs_are_validated_within_them(updates, every):
    flags = ["--validate-interval-updates", str(every), "--patience", "-1"]  # patience counts validations
    assert RECIPE.validations(updates) == flags and updates // every >= min(updates, 8)


def test_longer_trainings_are_validated_after_epochs():
    assert RECIPE.validations(500) == []


@pytest.mark.parametrize(
    "updates, left, said",
    [
        (600, [600], "about 5.0 min, 0.50 s an update, of each training; done at about 23:35, translations"),
        (600, [600, 600], "of each training; 10.0 min of both; done at about 23:40, translations not included"),
        (600, [0, 600], "of each training; 10.0 min of both; done at about 23:35, translations not included"),
        (6000, [6000], "done at about 00:20 on 02 March, translations not included"),
    ],
)
def test_the_time_of_all_trainings_and_its_end_are_said(updates, left, said):
    assert said in expected_time(0.5, updates, left, datetime(2026, 3, 1, 23, 30))
