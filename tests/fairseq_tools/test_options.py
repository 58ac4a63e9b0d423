"""Tests fairseq's training options in two updates of a model with three kinds of attention.

Options that do not touch each other share a training.
"""

import pytest

ATTENTION = [
    *("--fwp-encoder", "favor", "--fwp-decoder", "dpfp,update-rule=delta"),
    *("--fwp-cross", "elu,update-rule=gated_delta"),
]
# Options that compute the same in another way.
EQUIVALENT = {
    "offload-activations": ["--offload-activations"],  # which sets --checkpoint-activations too
    "backend-workers-and-ema": ["--fwp-backend", "reference", "--num-workers", 2, "--store-ema", "--ema-fp32"],
}
OTHER = {
    "layers-and-noise": [
        *("--encoder-normalize-before", "--decoder-normalize-before", "--layernorm-embedding"),
        *("--encoder-layerdrop", 0.5, "--decoder-layerdrop", 0.5, "--encoder-learned-pos", "--decoder-learned-pos"),
        *("--quant-noise-pq", 0.1, "--attention-dropout", 0.2, "--activation-dropout", 0.1, "--update-freq", 2),
    ],
    "adafactor-and-buckets": ["--optimizer", "adafactor", "--num-batch-buckets", 2, "--max-tokens", 2000],
}


def train(tools, *arguments, **keywords) -> list[float]:
    arguments = [*ATTENTION, "--max-update", 2, "--no-save", "--disable-validation", *arguments]
    losses = tools.train("unused", *arguments, **keywords).ok().losses()
    assert len(losses) == 2
    return losses


@pytest.fixture(scope="module")
def plain(tools):
    return train(tools)


@pytest.mark.parametrize("option", EQUIVALENT)
def test_equivalent(tools, plain, option):
    assert train(tools, *EQUIVALENT[option]) == pytest.approx(plain, abs=2e-3)


@pytest.mark.parametrize("option", OTHER)
def test_trains(tools, option):
    train(tools, *OTHER[option], without=("--optimizer", "--adam-betas") if "--optimizer" in OTHER[option] else ())
