"""Which of PyTorch's kernels softmax attention may take: in our layers while they train, and elsewhere."""

import pytest
import torch
from torch.backends import cuda

import fwp_fairseq.mends  # noqa: F401
from tests.models.helpers import build, loss
from tests.models.test_stock import stock_model


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_only_our_layers_in_training_make_no_plans(ours, training, monkeypatch):
    """cuDNN's attention plans anew for each length."""
    model = build(fwp_feature_map="softmax", fwp_decoder="elu") if ours else stock_model(0)
    model = model.float().train(training)
    compute, allowed = torch.nn.functional.scaled_dot_product_attention, []

    def attend(*args, **kwargs):
        allowed.append(cuda.cudnn_sdp_enabled())
        return compute(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    loss(model)
    assert allowed and set(allowed) == {not (ours and training)}
    assert cuda.cudnn_sdp_enabled()
    assert cuda.flash_sdp_enabled() and cuda.mem_efficient_sdp_enabled() and cuda.math_sdp_enabled()
