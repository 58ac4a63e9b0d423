"""Sampling of fwp generate; what it prints of a model is in tests/fairseq_tools/test_carried_state.py."""

import pytest
import torch

from fwp_fairseq.cli.generate import choose

LOG_PROBABILITIES = torch.tensor([0.1, 0.6, 0.3]).log()


@pytest.mark.parametrize(
    "temperature, top_k, top_p, expected",
    [
        (1.0, None, None, [0.1, 0.6, 0.3]),
        (0.5, None, None, [0.01 / 0.46, 0.36 / 0.46, 0.09 / 0.46]),
        (1.0, 2, None, [0, 2 / 3, 1 / 3]),
        (1.0, None, 0.7, [0, 2 / 3, 1 / 3]),
        (1.0, None, 0.5, [0.0, 1.0, 0.0]),
        (1.0, None, 1.0, [0.1, 0.6, 0.3]),
    ],
)
def test_tokens_come_as_often_as_their_probability_says(temperature, top_k, top_p, expected):
    generator = torch.Generator().manual_seed(1)
    drawn = [choose(LOG_PROBABILITIES, temperature, top_k, top_p, generator) for _ in range(2000)]
    found = torch.tensor(drawn).bincount(minlength=3) / 2000
    # Five standard deviations of a frequency are 0.056 at most; what is left out never comes.
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=0.056)
    assert all(frequency == 0 for frequency, chance in zip(found, expected, strict=True) if chance == 0)


@pytest.mark.parametrize(
    "status, flags, message",
    [
        (2, ["--length", "-1"], "--length -1: expected 0 or more"),
        (2, ["--temperature", "0"], "--temperature 0.0: expected more than 0"),
        (2, ["--top-k", "0"], "--top-k 0: expected 1 or more"),
        (2, ["--top-p", "1.5"], "--top-p 1.5: expected more than 0, at most 1"),
        (1, [], "none.pt: no such file"),
    ],
)
def test_refusals(refused, status, flags, message):
    assert message in refused(status, "generate", "none.pt", "--data", "none", *flags)
