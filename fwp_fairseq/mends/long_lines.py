"""Names every flag that allows a sentence that is too long.

fairseq names only the flag that skips such sentences.
"""

from fairseq.tasks import FairseqTask

from . import around, program

# The limits that a task may have, each of which is also a flag.
_LIMITS = ("max_source_positions", "max_target_positions", "tokens_per_sample")


@around(FairseqTask, "filter_indices_by_size")
def filter_or_say_how(filter_indices, self, *args, **kwargs):
    try:
        return filter_indices(self, *args, **kwargs)
    except Exception as error:
        known = [name for name in _LIMITS if hasattr(self.args if self.cfg is None else self.cfg, name)]
        if not known or not str(error).startswith("Size of sample"):
            raise
        advice = f"{error}, or take it with {' '.join(f'--{name} N'.replace('_', '-') for name in known)}"
        if program("train") is None:
            overrides = ", ".join(f"'{name}': N" for name in known)
            advice += f' and, for positions that are not learned, --model-overrides "{{{overrides}}}"'
        raise ValueError(advice) from None
