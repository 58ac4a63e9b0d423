"""Watches the time and the memory of work that goes on for long: `python -m benchmarks.long_runs`.

The runs are thousands of calls of beam search, thousands of updates, a document of 100,000 tokens that is translated in
one piece, and a text of as many tokens that a language model continues. The models are untrained and small, so that a
leak of a few hundred bytes a call shows, and a cost that grows with what was done before. Every run has a process of
its own with one thread. Its work is divided into parts of equal size, ten if the number of units is a multiple of ten;
for each of them the CPU time of a unit and the resident memory at its end are recorded. With softmax attention, whose
costs do grow, the text is shorter: 100,000 tokens would take hours.
"""

import gc
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from multiprocessing import get_context

import torch
from tqdm import tqdm

from . import decoding, language_model, models, training
from .models import ATTENTION, ModelCase
from .program import Session, parser, resident_bytes

_PARTS = 10


class Watch:
    """Counts units of work, and measures each part of them."""

    def __init__(self, name: str, count: int):
        self.part, self.done, self.points = -(-count // _PARTS), 0, []
        self.progress = tqdm(total=count, desc=name)
        self.start = time.thread_time()

    def tick(self, *_: object) -> None:
        """Counts a unit that is done."""
        self.done += 1
        self.progress.update()
        if self.done % self.part == 0:
            used = time.thread_time() - self.start
            gc.collect()  # what only a collection would free is no leak
            self.points.append(
                {"done": self.done, "seconds": used / self.part, "resident_bytes": resident_bytes("VmRSS")}
            )
            self.start = time.thread_time()


def _calls(row: str, count: int, watch: Watch) -> None:
    case = ModelCase("mini", "multi30k", 80, 50, 1)
    task = models.build_task(case)
    search = decoding.searching(task, case, row, models.build_model(task, case.size, row).eval())
    for batch in islice(cycle(models.batches(task, case, "cpu")), count):
        search(batch, round(batch["ntokens"] / batch["nsentences"]) - 1)
        watch.tick()


def _updates(row: str, count: int, watch: Watch) -> None:
    case = ModelCase("mini", "multi30k", 500, 50, 1)
    task = models.build_task(case)
    update = training.prepare(task, case, row, "cpu")
    for batch in islice(cycle(models.batches(task, case, "cpu")), count):
        update(batch)
        watch.tick()


def _document(row: str, count: int, watch: Watch) -> None:
    """Translates a text of count / 4 tokens in one piece; a unit is a token of the translation."""
    case = ModelCase("mini", "multi30k", count, 1, 1)
    task = models.build_task(case)
    longest = ("--max-source-positions", count, "--max-target-positions", count)
    model = models.build_model(task, case.size, row, *longest).eval()
    model.decoder.layers[-1].register_forward_hook(watch.tick)  # fairseq calls the decoder itself past its hooks
    data = task.dataset("train")
    words = torch.cat([pair["source"][:-1] for pair in islice(cycle(data), max(1, count // 40))])[: count // 4]
    end = words.new_tensor([task.source_dictionary.eos()])
    batch = data.collater([{"id": 0, "source": torch.cat([words, end]), "target": end}])
    decoding.searching(task, case, row, model)(batch, count - 1)


@torch.no_grad()
def _continued(row: str, count: int, watch: Watch) -> None:
    """Draws tokens of a text one by one."""
    task, model = language_model.build("tiny", row)
    model.eval().make_generation_fast_()
    state, token = {}, torch.tensor([[task.target_dictionary.eos()]])
    generator = torch.Generator().manual_seed(1)
    for length in range(1, count + 1):
        # fairseq reads the last token alone, and takes its position from the length; the view needs no memory.
        found = model.decoder(token.expand(1, length), incremental_state=state)
        chances = model.get_normalized_probs(found, log_probs=False)[0, -1]
        token = torch.multinomial(chances, 1, generator=generator)[None]
        watch.tick()


@dataclass(frozen=True)
class Run:
    """``work(row, count, watch)`` does ``count`` units of work with the attention of this row."""

    what: str
    unit: str
    work: Callable[[str, int, Watch], None]
    row: str
    count: int

    @property
    def name(self) -> str:
        return f"{self.what}-{self.row}"


RUNS = [
    Run("calls", "calls of beam search", _calls, "delta256", 10_000),
    *(Run("updates", "updates", _updates, row, 2_000) for row in ("delta256", "favor256")),
    *(Run("document", "tokens of a translation", _document, row, 100_000) for row in ("dpfp256", "delta256")),
    *(Run("continued", "tokens of a text", _continued, row, 100_000) for row in ("elu", "delta256")),
    Run("continued", "tokens of a text", _continued, "softmax", 10_000),
]


def _alone(name: str, count: int) -> list[dict]:
    logging.disable(logging.INFO)  # fairseq's
    torch.set_num_threads(1)
    (run,) = (run for run in RUNS if run.name == name)
    watch = Watch(name, count)
    run.work(run.row, count, watch)
    return watch.points


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__, devices=("cpu",))
    options.add_argument("--count", type=int, metavar="N", help="at most N units in each run (default: its own number)")
    arguments = options.parse_args(argv)
    if arguments.count is not None and arguments.count < _PARTS:
        options.error(f"--count: expected {_PARTS} or more, found {arguments.count}")
    session = Session("long-runs", arguments)
    for run in session.until_deadline(session.chosen(RUNS)):
        count = min(run.count, arguments.count or run.count)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            points = pool.submit(_alone, run.name, count).result()
        first, last = points[0], points[-1]
        print(
            f"{run.name:20} {count:7,} {run.unit:24} {first['seconds'] * 1e3:8.3f} -> {last['seconds'] * 1e3:8.3f} ms"
            f"  {first['resident_bytes'] / 2**20:6.0f} -> {last['resident_bytes'] / 2**20:6.0f} MiB",
            flush=True,
        )
        feature_map, rule, _, _ = ATTENTION[run.row]
        session.record(
            run=run.what, unit=run.unit, count=count, feature_map=feature_map, update_rule=rule, points=points
        )
    return session.status()


if __name__ == "__main__":
    sys.exit(main())
