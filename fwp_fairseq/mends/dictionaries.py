"""Saves digests of the dictionaries in checkpoints, and refuses to open one with other dictionaries.

The parameters reveal only how many entries the dictionaries had; with others of the same size, translations are
nonsense.
"""

import hashlib
import logging

from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer

from . import around, read_states

logger = logging.getLogger(__name__)

KEY = "dictionaries"  # an entry of the state that fairseq saves for the task; fairseq without the plugin reads it too
_DESCRIBED = "described_dictionaries"  # an attribute of tasks
_KINDS = {"src_dict": "source ", "tgt_dict": "target ", "dictionary": ""}


def _describe(task: FairseqTask) -> dict[str, str]:
    """Describes each dictionary of a translation or language-modelling task by its number of entries and a digest.

    Other tasks are left alone; the dictionaries of a multilingual task, for example, depend on the language pair. The
    description is made once, before a model is built: some tasks (online_backtranslation) and models
    (--merge-src-tgt-embed) add words to the dictionaries afterwards, and fairseq-generate checks a checkpoint before.
    """
    if _DESCRIBED in vars(task):
        return getattr(task, _DESCRIBED)
    descriptions = vars(task)[_DESCRIBED] = {}
    for name in _KINDS:
        dictionary = getattr(task, name, None)
        if isinstance(dictionary, Dictionary):
            digest = hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8", "surrogatepass")).hexdigest()
            descriptions[name] = f"{len(dictionary)} entries, sha256 {digest[:12]}"
    return descriptions


def _difference(task: FairseqTask, remembered: object) -> str | None:
    """Describes how the task's dictionaries differ from the checkpoint's; None if they agree or it has none."""
    if not isinstance(remembered, dict):
        return None
    for name, now in _describe(task).items():
        if remembered.get(name, now) != now:
            return (
                f"the checkpoint was trained with another {_KINDS[name]}dictionary: "
                f"expected {remembered[name]}, actual {now}"
            )
    return None


@around(FairseqTask, "build_model")
def describe_and_build(build_model, self, *args, **kwargs):
    _describe(self)
    return build_model(self, *args, **kwargs)


@around(FairseqTask, "state_dict", ours=True)
def state_and_dictionaries(state_dict, self):
    return {**state_dict(self), KEY: _describe(self)}


@around(FairseqTask, "load_state_dict")
def check_and_load(load_state_dict, self, state):
    state = dict(state)
    if problem := _difference(self, state.pop(KEY, None)):
        raise ValueError(f"{problem}; give the data folder that it was trained on")
    load_state_dict(self, state)


@around(Trainer, "load_checkpoint")
def load_and_check(load, self, filename, reset_optimizer=False, *args, **kwargs):
    """Checks the dictionaries in fairseq-train too, which does not load the task's state.

    When only the parameters are loaded (--reset-optimizer, --finetune-from-model), other dictionaries may be intended,
    so a difference is a warning only.
    """

    def checked(state: dict) -> dict:
        problem = _difference(self.task, (state.get("task_state") or {}).get(KEY))
        if problem and not reset_optimizer:
            sizes = (text.partition(" ")[0] for text in problem.partition("expected ")[2].split(", actual "))
            advice = "--finetune-from-model begins a new training with its parameters"
            if len(set(sizes)) > 1:
                advice = "fairseq-preprocess --srcdict DICTIONARY --tgtdict DICTIONARY makes data with its own"
            raise ValueError(f"{filename}: {problem}; {advice}, --save-dir a training in another folder")
        if problem:
            logger.warning(f"{filename}: {problem}")
        return state

    with read_states(checked):
        return load(self, filename, reset_optimizer, *args, **kwargs)
