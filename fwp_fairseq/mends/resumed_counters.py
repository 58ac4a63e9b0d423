"""Saves what a resumed training needs, beyond what fairseq saves, to end as an uninterrupted one does.

fairseq does not save the counters of plateau, loss scale and early stopping, the learning rate at the start of an
epoch, or the parameters in single precision.
"""

from fairseq import checkpoint_utils
from fairseq.optim import fp16_optimizer
from fairseq.optim.lr_scheduler.polynomial_decay_schedule import PolynomialDecayLRSchedule
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.trainer import Trainer

from . import around, program

_SCALER = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")
_PLATEAU = ("num_bad_epochs", "cooldown_counter")
_STOPPING = ("best", "num_runs")


def _stopping() -> dict:
    """Returns the counters of --patience, which are attributes of a function of fairseq's training."""
    training = program("train")
    return {} if training is None else vars(training.should_stop_early)


def _master(optimizer) -> list:
    """Returns the parameters in single precision; the memory-efficient optimizers have none."""
    parameters = getattr(optimizer, "fp32_params", [])
    return list(parameters.values() if isinstance(parameters, dict) else parameters)


for _cls in (fp16_optimizer._FP16OptimizerMixin, fp16_optimizer._MemoryEfficientFP16OptimizerMixin):

    @around(_cls, "state_dict", ours=True)
    def state_and_more(state_dict, self):
        own = {"fp32_params": [tensor.detach() for tensor in _master(self)]}
        if self.scaler is not None:
            own["loss_scaler"] = {name: getattr(self.scaler, name) for name in _SCALER}
        return {**state_dict(self), **own}

    @around(_cls, "load_state_dict", ours=True)
    def load_more(load_state_dict, self, state, optimizer_overrides=None):
        load_state_dict(self, state, optimizer_overrides)
        if "fp32_params" in state:
            for tensor, saved in zip(_master(self), state["fp32_params"], strict=True):
                tensor.data.copy_(saved)
        if self.scaler is not None:
            vars(self.scaler).update(state.get("loss_scaler", {}))


@around(ReduceLROnPlateauLRSchedule, "state_dict", ours=True)
def state_and_plateau(state_dict, self):
    return state_dict(self) | {name: getattr(self.lr_scheduler, name) for name in _PLATEAU}


@around(ReduceLROnPlateauLRSchedule, "load_state_dict", ours=True)
def load_plateau(load_state_dict, self, state):
    load_state_dict(self, state)
    vars(self.lr_scheduler).update({name: state[name] for name in _PLATEAU if name in state})


@around(PolynomialDecayLRSchedule, "get_next_lr", ours=True)
def next_or_kept(get_next_lr, self, epoch):
    """Returns the rate from which an epoch decays; after --force-anneal that is the rate with which it began."""
    if getattr(self, "begun", (None,))[0] != epoch:
        self.begun = epoch, get_next_lr(self, epoch)
    return self.begun[1]


@around(PolynomialDecayLRSchedule, "state_dict", ours=True)
def state_and_begin(state_dict, self):
    return state_dict(self) | {"begun": self.begun}


@around(PolynomialDecayLRSchedule, "load_state_dict", ours=True)
def load_begin(load_state_dict, self, state):
    load_state_dict(self, state)
    if "begun" in state:
        self.begun = tuple(state["begun"])
        self.lr = self.begun[1]


@around(Trainer, "save_checkpoint", ours=True)
def save_counters(save, self, filename, extra_state):
    counters = {name: number for name, number in _stopping().items() if name in _STOPPING}
    return save(self, filename, extra_state | {"early_stopping": counters})


@around(checkpoint_utils, "load_checkpoint", ours=True)
def load_and_step(load, cfg, trainer, **kwargs):
    extra_state, iterator = load(cfg, trainer, **kwargs)
    if extra_state and trainer.get_num_updates() and not (cfg.reset_optimizer or cfg.reset_meters):
        _stopping().update(extra_state.get("early_stopping", {}))
    # fairseq saves the end of an epoch before the schedule has seen the loss of its validation.
    ended = extra_state and not extra_state["train_iterator"].get("iterations_in_epoch")
    if ended and trainer.get_num_updates() and not cfg.reset_lr_scheduler:
        trainer.lr_step(iterator.epoch - 1)  # without a loss, the schedule for plateaus sets the epoch
        trainer.lr_step(iterator.epoch - 1, extra_state.get("val_loss"))
    return extra_state, iterator
