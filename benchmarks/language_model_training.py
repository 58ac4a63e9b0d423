"""Measures tokens per second in training language models: `python -m benchmarks.language_model_training`.

The models have four layers of the paper's two sizes for WikiText-103 and a vocabulary of 4000, so that attention has a
larger share of the time than in the paper's 16 layers with 268,000 words. fairseq's trainer does whole updates of every
model in turn on the same batch of random words; the smallest CPU time of one thread counts. With carried state a
segment begins with the fast weights of the one before it. A model is timed only after its loss and gradient agree with
the reference in float64; the exit status is 1 if they do not.
"""

import logging
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from fairseq.trainer import Trainer

from fwp_fairseq.modules.carried_state import CarriedState, Segment

from . import language_model
from .clock import Call, fastest
from .gate import Refused
from .model_gate import check_update
from .models import attention_fields
from .program import Session, parser

_WORDS, _STREAMS = 4000, 4
CARRIED = "-carried"
_DELTA = "dpfp,d-dot=256,update-rule=delta"
ROWS = ("elu", "dpfp,d-dot=256", _DELTA, f"elu{CARRIED}", f"{_DELTA}{CARRIED}")


class Case(NamedTuple):
    """A size and the length of its segments, as in the paper."""

    size: str
    length: int

    @property
    def name(self) -> str:
        return f"{self.size}-{self.length}"


CASES = [Case("small", 256), Case("medium", 384)]


def _sample(length: int, streams: int = _STREAMS) -> dict:
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(4, _WORDS, (streams, length + 1), generator=generator)
    inputs = {"src_tokens": text[:, :-1], "src_lengths": torch.full((streams,), length)}
    return {
        "id": torch.arange(streams), "nsentences": streams, "ntokens": streams * length,
        "net_input": inputs, "target": text[:, 1:].contiguous(),
    }  # fmt: skip


def _check(case: Case, row: str) -> None:
    one_layer = ("--decoder-layers", 1)
    task, model = language_model.build(case.size, row, *one_layer, words=_WORDS)
    backend = [] if row == "softmax" else ["--fwp-backend", "reference"]
    _, exact = language_model.build(case.size, row, *one_layer, *backend, words=_WORDS)
    exact.load_state_dict(model.state_dict())
    criterion = task.build_criterion(language_model.configuration(case.size, row).criterion)
    check_update(f"{row}, {case.name}", criterion, model.eval(), exact.eval(), _sample(40, 2))


def _updates(case: Case, row: str, carries: bool) -> Callable[[], None]:
    """Returns a function that does an update."""
    task, model = language_model.build(case.size, row, words=_WORDS)
    cfg = language_model.configuration(case.size, row)
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    trainer.begin_epoch(1)
    sample, state = _sample(case.length), CarriedState()
    offsets = torch.zeros(_STREAMS, dtype=torch.long)

    def update() -> None:
        if carries:
            sample["net_input"] |= {"segment": Segment(state), "offsets": offsets.clone()}
            offsets.add_(case.length)
        if trainer.train_step([sample]) is None:
            raise Refused(f"{row}, {case.name}: fairseq's trainer skipped an update")

    return update


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__, devices=("cpu",))
    options.add_argument("--seconds", type=float, default=20, metavar="S", help="for each model (default: 20)")
    arguments = options.parse_args(argv)
    logging.disable(logging.INFO)  # fairseq's
    torch.set_num_threads(1)
    session = Session("language-model-training", arguments)
    for case in session.until_deadline(session.chosen(CASES)):
        attention = {name: name.removesuffix(CARRIED) for name in ("softmax", *ROWS)}
        right = set()
        for row in dict.fromkeys(attention.values()):
            try:
                _check(case, row)
                right.add(row)
            except Refused as error:
                session.failed.append(str(error))
        calls = {
            name: [Call(_updates(case, row, carries=name != row))] for name, row in attention.items() if row in right
        }
        try:
            for [call] in calls.values():  # the optimizer allocates in the first update
                call()
            seconds = fastest(calls, "cpu", arguments.seconds).seconds
        except Refused as error:
            session.failed.append(str(error))
            continue
        for name, used in seconds.items():
            row = attention[name]
            ratio = seconds["softmax"] / used if "softmax" in seconds else None
            over_reset = seconds[row] / used if name != row else None
            cells = [f"{case.name:12} {name:18} {_STREAMS * case.length / used:8.0f} tokens/s"]
            cells += [] if ratio is None else [f"{ratio:.3f} of fairseq's"]
            cells += [] if over_reset is None else [f"{over_reset:.3f} of the same without carried state"]
            print("  ".join(cells), flush=True)
            session.record(
                size=case.size, length=case.length, attention=name, **attention_fields(row),
                d_dot=language_model.d_dot(case.size, row), carries=name != row, seconds=used,
                tokens_per_second=_STREAMS * case.length / used, ratio=ratio, over_reset=over_reset,
            )  # fmt: skip
    return session.status()


if __name__ == "__main__":
    sys.exit(main())
