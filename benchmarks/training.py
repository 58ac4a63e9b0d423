"""Measures words per second in training our models and fairseq's Transformer: `python -m benchmarks.training`.

fairseq's trainer does whole updates of every model in turn on the same batches; the smallest time of each batch counts.
Words are target tokens, as in fairseq's log. A model is timed only after its loss and gradient agree with the reference
in float64; the exit status is 1 if they do not. With --profile no model is timed; torch.profiler says how much of an
update is attention, and on a GPU how long it waits for work.
"""

import sys

import torch
from fairseq.trainer import Trainer

from . import model_gate, models, update_profile
from .gate import Refused
from .models import ModelCase
from .whole_models import Work, run_program

_DOCUMENT_ROWS = ("elu", "favor,d-dot=256", "dpfp,d-dot=256", "dpfp,d-dot=512", "dpfp,d-dot=256,update-rule=delta")
CASES = {
    "cpu": [
        ModelCase("tiny", "multi30k", 2500, 4, 5),
        ModelCase("small", "multi30k", 2500, 4, 5),
        ModelCase("base", "multi30k", 1000, 2, 3),
        ModelCase("base", "wmt", 1000, 2, 3),
        ModelCase("tiny", "512", 4096, 2, 4),
        ModelCase("tiny", "2048", 4096, 2, 4, _DOCUMENT_ROWS),
        ModelCase("base", "512", 1024, 1, 3, _DOCUMENT_ROWS),
        ModelCase("base", "2048", 2048, 1, 2, _DOCUMENT_ROWS),
        ModelCase("small", "256", 2500, 4, 5, ("softmax", "hybrid", "passages")),
    ],
    "cuda": [
        ModelCase("big", "wmt", 8192, 8, 5),
        ModelCase("big", "512", 8192, 4, 5),
        ModelCase("big", "2048", 8192, 4, 5),
    ],
}


def check(task, case: ModelCase, row: str, device: str) -> None:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model_gate.check_training(task, case, row, device, dtype)


def prepare(task, case: ModelCase, row: str, device: str):
    cfg = models.configuration(
        case.size, row, "--max-tokens", case.max_tokens, "--cpu" if device == "cpu" else "--bf16"
    )
    torch.manual_seed(1)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    trainer.begin_epoch(1)

    def update(sample: dict) -> int:
        if trainer.train_step([sample]) is None:
            raise Refused(f"{row}, {case.name}: fairseq's trainer skipped an update")  # out of memory, for one
        return sample["ntokens"]

    return update


# The optimizer allocates in the first update.
WORK = Work("training", "words", CASES, check, prepare, repeats=2, profile=update_profile.measure)


def main(argv: list[str] | None = None) -> int:
    return run_program(WORK, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
