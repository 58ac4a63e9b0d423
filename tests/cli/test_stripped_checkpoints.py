"""Checkpoints of which only the parameters and their options are left, as some are published."""

import pytest
import torch

from fwp_fairseq.cli.checkpoint import load_model


@pytest.mark.parametrize("arch", ["fwp_transformer_tiny", "transformer_iwslt_de_en"])
@pytest.mark.parametrize("left", [{}, {"optimizer_history": [], "extra_state": None}])
def test_a_checkpoint_without_the_state_of_a_training_opens(save, data, fwp, tmp_path, arch, left):
    path = save(arch)
    state = torch.load(path, weights_only=True)
    torch.save({name: state[name] for name in ("cfg", "model")} | left, path)
    model, _, _ = load_model(path, lambda task: data)
    assert model.decoder is not None
    average = tmp_path / "average.pt"
    assert fwp("average", "--inputs", path, "--output", average).status == 0
    assert torch.equal(
        load_model(average, lambda task: data)[0].state_dict()["decoder.embed_tokens.weight"],
        model.state_dict()["decoder.embed_tokens.weight"],
    )
