"""An optimizer and a scheduler that are saved and loaded go on as if nothing had happened."""

import argparse
import copy
from dataclasses import MISSING, fields
from types import SimpleNamespace

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.optim import FP16Optimizer, MemoryEfficientFP16Optimizer
from fairseq.optim.adam import FairseqAdam
from fairseq.optim.composite import CompositeLRScheduler
from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY, LR_SCHEDULER_REGISTRY
from omegaconf import OmegaConf

from fwp_fairseq import mends
from fwp_fairseq.mends.resumed_counters import load_and_step
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


# Every flag of every schedule, with values that change the rates of four epochs of five updates.
SCHEDULES = {
    "cosine": {
        **{"warmup_updates": 3, "warmup_init_lr": 1e-4, "lr": [3e-3], "min_lr": 1e-5, "t_mult": 2.0},
        **{"lr_period_updates": 4, "lr_shrink": 0.5, "max_update": 11},
    },
    "fixed": {"force_anneal": 3, "lr_shrink": 0.7, "warmup_updates": 8, "lr": [3e-3, 1e-3]},
    "inverse_sqrt": {"warmup_updates": 4, "warmup_init_lr": 1e-4, "lr": [3e-3]},
    "manual": {"epoch2lr": "{'1': 1e-3, '3': 2e-3}", "update2lr": "{'4-6': 5e-4, '9': 3e-3}"},
    "pass_through": {},
    "polynomial_decay": {
        **{"warmup_updates": 3, "force_anneal": 2, "end_learning_rate": 1e-4, "power": 2.0, "total_num_update": 13},
        "lr": [3e-3, 2.5e-3],
    },
    "reduce_lr_on_plateau": {
        **{"lr_shrink": 0.5, "lr_threshold": 0.3, "lr_patience": 1, "warmup_updates": 4, "warmup_init_lr": 1e-4},
        **{"lr": [3e-3], "maximize_best_checkpoint_metric": True},
    },
    "step": {
        **{"warmup_updates": 3, "warmup_init_lr": 1e-4, "lr": [3e-3], "min_lr": 1e-3, "lr_deacy_period": 3},
        "lr_decay": 0.7,
    },
    "tri_stage": {
        **{"warmup_steps": 4, "hold_steps": 3, "decay_steps": 5, "phase_ratio": (0.3, 0.3, 0.4)},
        **{"init_lr_scale": 0.1, "final_lr_scale": 0.2, "max_update": 11, "lr": [3e-3]},
    },
    "triangular": {"max_lr": 3e-3, "lr_period_updates": 5, "lr_shrink": 0.5, "shrink_min": True, "lr": [1e-3]},
}
ELSEWHERE = {"lr": [2e-3], "max_update": 14, "maximize_best_checkpoint_metric": False}  # flags that schedules share
UPDATES, LOSSES = 5, (5.0, 4.9, 4.8, 3.0)  # of each epoch
NO_RESET = SimpleNamespace(reset_optimizer=False, reset_meters=False, reset_lr_scheduler=False)


def usual(name):
    """Returns the defaults of a schedule's flags; those that have to be given are not in it."""
    if name == "manual":  # which has no dataclass
        LR_SCHEDULER_REGISTRY[name].add_args(parser := argparse.ArgumentParser())
        return vars(parser.parse_args([])) | ELSEWHERE
    theirs = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in flags(name)}
    return {"total_num_update": ELSEWHERE["max_update"]} | {
        flag: ELSEWHERE.get(flag, value) for flag, value in theirs.items() if flag != "total_num_update"
    }


def flags(name):
    return [field for field in fields(LR_SCHEDULER_DATACLASS_REGISTRY[name]) if field.name != "_name"]


class Training:
    """Calls a schedule as fairseq's trainer does, and the commands that train and resume."""

    def __init__(self, name, options):
        self.made_of, self.updates = (name, options), 0
        self.optimizer = FairseqAdam(OmegaConf.create(ADAM), [torch.nn.Parameter(torch.zeros(2))])
        if name == "pass_through":
            inner = LR_SCHEDULER_REGISTRY["step"](SimpleNamespace(**SCHEDULES["step"]), self.optimizer)
            self.optimizer.lr_scheduler = CompositeLRScheduler({"all": inner})
        self.lr_scheduler = LR_SCHEDULER_REGISTRY[name](SimpleNamespace(**usual(name) | options), self.optimizer)
        self.set_num_updates(0)

    def get_num_updates(self):
        return self.updates

    def set_num_updates(self, updates):
        self.updates = updates
        self.lr_scheduler.step_update(updates)

    def begin_epoch(self, epoch):
        self.lr_scheduler.step_begin_epoch(epoch)
        self.set_num_updates(self.updates)

    def lr_step(self, epoch, loss=None):
        self.lr_scheduler.step(epoch, loss)
        self.set_num_updates(self.updates)

    def resumed(self, epoch, loss):
        """Returns a training that is resumed in this epoch, or at its end, which had this loss."""
        optimizer, schedule = copy.deepcopy((self.optimizer.state_dict(), self.lr_scheduler.state_dict()))
        other, batches, next_epoch = Training(*self.made_of), self.updates % UPDATES, epoch
        next_epoch += not batches
        other.lr_scheduler.load_state_dict(schedule)
        other.optimizer.load_state_dict(optimizer)
        other.set_num_updates(self.updates)
        other.lr_step(next_epoch)
        other.lr_step(next_epoch)
        extra = {"train_iterator": {"iterations_in_epoch": batches}, "val_loss": None if batches else loss}
        load_and_step(lambda *_: (extra, SimpleNamespace(epoch=next_epoch)), NO_RESET, other)
        if batches:
            other.begin_epoch(epoch)
        return other


def rates(name, options, stops=()):
    """Returns the rates of a training that is interrupted after each of these updates, and its last state."""
    training, found = Training(name, options), []
    training.lr_step(1)
    for epoch, loss in enumerate(LOSSES, 1):
        training.begin_epoch(epoch)
        for _ in range(UPDATES):
            found.append(training.optimizer.get_lr())
            training.set_num_updates(training.updates + 1)
            if training.updates in stops:
                training = training.resumed(epoch, loss)
        if training.updates not in stops:
            training.lr_step(epoch, loss)
    return [*found, training.lr_scheduler.state_dict()]


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_an_uninterrupted_training_with_every_flag(monkeypatch, name):
    monkeypatch.setattr(mends, "_BUILT", {FwpTransformer})

    def without(*names):
        return {flag: value for flag, value in SCHEDULES[name].items() if flag not in names}

    optional = [flag for flag in SCHEDULES[name] if usual(name)[flag] != "???" and flag != "decay_steps"]
    for left_out in ((), *((flag,) for flag in optional)):
        expected = rates(name, without(*left_out))
        for stop in range(1, len(LOSSES) * UPDATES + 1):
            assert rates(name, without(*left_out), [stop]) == expected, (left_out, stop)
        assert rates(name, without(*left_out), range(len(LOSSES) * UPDATES + 1)) == expected, left_out
    for flag in optional:  # if not in all, it changes the rate where another flag is left out
        assert any(rates(name, without(flag, x)) != rates(name, without(x)) for x in (None, *optional)), flag


def test_the_grid_has_every_flag_of_every_schedule_of_fairseq():
    assert SCHEDULES.keys() == LR_SCHEDULER_REGISTRY.keys()
    for name, options in SCHEDULES.items():
        every = usual(name).keys() - ELSEWHERE.keys() if name == "manual" else {field.name for field in flags(name)}
        assert options.keys() == every
