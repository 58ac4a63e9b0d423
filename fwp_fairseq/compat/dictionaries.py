"""A checkpoint remembers the dictionaries it was trained with: the parameters know only how many entries there were."""

import contextlib
import hashlib
import logging

from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer

logger = logging.getLogger(__name__)

KEY = "dictionaries"  # in fairseq's own place for what a task remembers, which fairseq without the plugin reads too
_KINDS = {"src_dict": "source ", "tgt_dict": "target ", "dictionary": ""}


def _describe(task: FairseqTask) -> dict[str, str]:
    """Number and digest of the entries, in their order, of each dictionary that translation or language modelling has.
    Others are left alone: those of a multilingual task depend on the language pair that is chosen."""
    found = {}
    for name in _KINDS:
        dictionary = getattr(task, name, None)
        if isinstance(dictionary, Dictionary):
            digest = hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8", "surrogatepass")).hexdigest()
            found[name] = f"{len(dictionary)} entries, sha256 {digest[:12]}"
    return found


def _difference(task: FairseqTask, remembered: object) -> str | None:
    """What is wrong with the task's dictionaries, if anything; a checkpoint that remembers none fits all."""
    if not isinstance(remembered, dict):
        return None
    for name, now in _describe(task).items():
        if remembered.get(name, now) != now:
            return (
                f"the checkpoint was trained with another {_KINDS[name]}dictionary: "
                f"expected {remembered[name]}, actual {now}"
            )
    return None


def remember() -> None:
    """Checkpoints hold the dictionaries' digests; one that is opened with others is refused with ValueError."""
    state_dict, load_state_dict = FairseqTask.state_dict, FairseqTask.load_state_dict
    if getattr(state_dict, "remembers_dictionaries", False):
        return

    def state_and_dictionaries(self):
        return {**state_dict(self), KEY: _describe(self)}

    def check_and_load(self, state):
        state = dict(state)
        if problem := _difference(self, state.pop(KEY, None)):
            raise ValueError(f"{problem}; give the folder of data that holds its own")
        load_state_dict(self, state)

    state_and_dictionaries.remembers_dictionaries = True
    FairseqTask.state_dict, FairseqTask.load_state_dict = state_and_dictionaries, check_and_load
    _check_when_training()


@contextlib.contextmanager
def _each_checkpoint(check):
    load = checkpoint_utils.load_checkpoint_to_cpu

    def load_and_check(*args, **kwargs):
        state = load(*args, **kwargs)
        check(state)
        return state

    checkpoint_utils.load_checkpoint_to_cpu = load_and_check
    try:
        yield
    finally:
        checkpoint_utils.load_checkpoint_to_cpu = load


def _check_when_training() -> None:
    """fairseq-train does not read what a task remembers. Parameters alone (--reset-optimizer, --finetune-from-model)
    may well go to other words: that is said, and done."""
    load = Trainer.load_checkpoint

    def load_and_check(self, filename, reset_optimizer=False, *args, **kwargs):
        def check(state: dict) -> None:
            problem = _difference(self.task, (state.get("task_state") or {}).get(KEY))
            if problem and not reset_optimizer:
                raise ValueError(
                    f"{filename}: {problem}; --finetune-from-model begins a new training with its parameters"
                )
            if problem:
                logger.warning(f"{filename}: {problem}")

        with _each_checkpoint(check):
            return load(self, filename, reset_optimizer, *args, **kwargs)

    Trainer.load_checkpoint = load_and_check
