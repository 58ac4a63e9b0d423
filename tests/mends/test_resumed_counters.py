"""An optimizer and a scheduler that are saved and loaded go on as if nothing had happened."""

import copy

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.optim import FP16Optimizer, MemoryEfficientFP16Optimizer
from omegaconf import OmegaConf

from fwp_fairseq import mends
from fwp_fairseq.models.fwp_transformer import FwpTransformer

ADAM = {"_name": "adam", "adam_betas": "(0.9, 0.98)", "adam_eps": 1e-8, "weight_decay": 0.0, "use_old_adam": True}
ADAM |= {"fp16_adam_stats": False, "lr": [0.003], "tpu": False}


def configuration(dtype):
    cfg = OmegaConf.create(OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), resolve=True))
    cfg.optimizer = ADAM
    cfg.common.fp16, cfg.common.bf16 = dtype is torch.float16, dtype is torch.bfloat16
    cfg.common.fp16_no_flatten_grads = True  # flat ones are for GPUs
    cfg.common.fp16_init_scale, cfg.common.fp16_scale_window = 4, 4
    return cfg


def train(cls, parameter, steps, state=None):
    """Makes steps of a training; returns its state."""
    optimizer = cls.build_optimizer(configuration(parameter.dtype), [parameter])
    if state is not None:
        optimizer.load_state_dict(state)
    for _ in range(steps):
        optimizer.zero_grad()
        optimizer.backward(((parameter.float() - 1) ** 2).sum())
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
    return copy.deepcopy(optimizer.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cls", [FP16Optimizer, MemoryEfficientFP16Optimizer])
def test_parameters_and_loss_scale_are_those_of_an_uninterrupted_training(monkeypatch, cls, dtype):
    monkeypatch.setattr(mends, "_BUILT", {FwpTransformer})
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)  # see mends/overflow.py
    begin = torch.linspace(-2, 2, 50).to(dtype)
    whole, first = (torch.nn.Parameter(begin.clone()) for _ in range(2))
    expected = train(cls, whole, 14)
    state = train(cls, first, 7)
    second = torch.nn.Parameter(first.detach().clone())
    found = train(cls, second, 7, state)
    assert torch.equal(second, whole) and not torch.equal(first, whole)
    assert found.get("loss_scale") == expected.get("loss_scale")
    assert found.get("loss_scaler") == expected.get("loss_scaler")
    for mine, theirs in zip(found["fp32_params"], expected["fp32_params"], strict=True):
        assert torch.equal(mine, theirs)
