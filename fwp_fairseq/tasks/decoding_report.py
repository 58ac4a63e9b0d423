"""Reports after decoding how many sources were longer than those in training, and how many translations were cut off.

fairseq cuts off a translation at --max-len-b, and does not record the lengths that a model was trained on. So the state
of a task stores the longest source in training, and each process counts what it decodes.
"""

import atexit
import logging
import sys
from dataclasses import dataclass

from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask

from ..mends import around, program

logger = logging.getLogger(__name__)

_MANY_UNKNOWN = 0.1  # of all tokens
KEY = "longest_source"  # an entry of the state that fairseq saves for the task


@dataclass
class _Count:
    """Counts what this process has decoded."""

    sentences: int = 0
    long: int = 0
    longest: int = 0
    trained: int = 0  # tokens of the longest source in training
    cut: int = 0
    limit: str = ""
    tokens: int = 0
    unknown: int = 0

    def add(self, task, generator, sample: dict, translated: list) -> None:
        lengths = sample["net_input"]["src_lengths"].tolist()
        if not self.sentences:
            atexit.register(self.conclude)
        self.sentences += len(lengths)
        self.trained = getattr(task, KEY, None) or sys.maxsize
        self.long += sum(length > self.trained for length in lengths)
        self.longest = max(self.longest, *lengths)
        if task.source_dictionary is not None:  # speech has none
            self.tokens += sum(lengths)
            self.unknown += int((sample["net_input"]["src_tokens"] == task.source_dictionary.unk()).sum())
        if generator.match_source_len:
            return
        wanted = int(generator.max_len_a * sample["net_input"]["src_tokens"].size(1) + generator.max_len_b)
        most = min(wanted, generator.max_len - 1)
        self.cut += sum(bool(beam) and len(beam[0]["tokens"]) > most for beam in translated)
        flags = f"--max-len-a {generator.max_len_a:g} --max-len-b {generator.max_len_b:g}"
        self.limit = flags if wanted == most else f"the {most} positions of the model (--max-target-positions)"

    def conclude(self) -> None:
        if self.long:
            logger.warning(
                f"{self.long} of {self.sentences} sources have up to {self.longest} tokens, more than any source in "
                f"training ({self.trained}); expect worse translations of these"
            )
        if self.unknown > _MANY_UNKNOWN * self.tokens:
            logger.warning(
                f"{self.unknown} of {self.tokens} tokens of the sources are unknown to the model: was the text encoded "
                "like the training text?"
            )
        if self.cut:
            logger.warning(f"{self.cut} of {self.sentences} translations reached the limit of {self.limit}: cut there")


@around(FairseqTask, "state_dict", ours=True)
def state_and_length(state_dict, self):
    """Saves the number of tokens of the longest source in training, which a task that decodes the checkpoint reads."""
    sizes = getattr(self.datasets.get("train"), "src_sizes", None)
    longest = getattr(self, KEY, None)
    if sizes is not None and len(sizes):
        longest = min(int(sizes.max()), getattr(self.cfg, "max_source_positions", sys.maxsize))
    return state_dict(self) | ({} if longest is None else {KEY: longest})


@around(FairseqTask, "load_state_dict")
def load_length(load_state_dict, self, state):
    state = dict(state)
    setattr(self, KEY, state.pop(KEY, None))
    load_state_dict(self, state)


_count = _Count()


@around(FairseqTask, "inference_step", ours=True)
def step_and_count(inference_step, self, generator, models, sample, *args, **kwargs):
    translated = inference_step(self, generator, models, sample, *args, **kwargs)
    validates = program("train") is not None
    if isinstance(generator, SequenceGenerator) and "src_lengths" in sample["net_input"] and not validates:
        _count.add(self, generator, sample, translated)
    return translated
