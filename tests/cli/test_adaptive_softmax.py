"""Checkpoints of decoders that share their embeddings and have an adaptive softmax can be opened."""

import pytest
import torch
from fairseq import checkpoint_utils

CUTOFF = "8,16"


@pytest.mark.parametrize("arch", ["transformer_tiny", "fwp_transformer_tiny_hybrid", "fwp_lm", "transformer_xl_lm"])
def test_a_checkpoint_with_shared_embeddings_opens(save, fwp, tmp_path, arch):
    lm = arch.endswith("_lm")
    path = save(arch, adaptive_softmax_cutoff=CUTOFF, **({"share_decoder_input_output_embed": True} if lm else {}))
    saved = torch.load(path, weights_only=False)["model"]
    assert "decoder.adaptive_softmax.head.weight" in saved and "decoder.output_projection.weight" not in saved
    assert fwp("average", "--inputs", path, "--output", tmp_path / "average.pt").status == 0
    if not lm:
        flags = ("--fwp-decoder", "gated-delta")
        assert fwp("convert", "--input", path, "--output", tmp_path / "converted.pt", *flags).status == 0
    for opened in tmp_path.glob("*.pt"):
        (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(opened)])
        head = model.state_dict()["decoder.adaptive_softmax.head.weight"]
        assert torch.equal(head, saved["decoder.adaptive_softmax.head.weight"])
