"""A number that fairseq moves to the GPU stays on a CPU, and the method that moves it is put back."""

from functools import partial

import torch
from fairseq.trainer import Trainer

from fwp_fairseq.mends import overflow


class OnACpu:
    device = torch.device("cpu")


def test_a_step_within_a_step(monkeypatch):
    """fairseq repeats a batch within the step when --amp overflows."""

    def step(self, deeper):
        return Trainer.train_step(self, deeper - 1).cuda() if deeper else torch.zeros(()).cuda()

    monkeypatch.setattr(Trainer, "train_step", partial(overflow.step_without_gpu, step))
    assert Trainer.train_step(OnACpu(), 2).device.type == "cpu"
    assert "cuda" not in vars(torch.Tensor)
