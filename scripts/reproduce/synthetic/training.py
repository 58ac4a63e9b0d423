"""Trains one model until it has solved the task or stops getting better."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from fwp_fairseq.ops import backends
from scripts.results.synthetic_figures import EVALUATE_EVERY, SOLVED
from scripts.results.synthetic_models import Variant

from . import task
from .model import RetrievalModel

EVALUATION_SEQUENCES, PATIENCE, MAX_STEPS = 20, 11, 100_000


@dataclass(frozen=True)
class Point:
    """One run. ``model`` is a name that :class:`.Variant` parses; ``S`` is the number of keys and of values."""

    setting: int
    model: str
    S: int
    seed: int = 1

    @property
    def replace(self) -> bool:
        return self.setting == 2

    @property
    def batch(self) -> int:
        """The batch size; the authors gave the fast weight memory with tanh a larger one, and a smaller step."""
        return 128 if self.model == "tanh-fwm" else 32

    @property
    def lr(self) -> float:
        return 1e-4 if self.model == "tanh-fwm" else 1e-3

    def __str__(self) -> str:
        return f"{self.model} S={self.S}" + (f" seed {self.seed}" if self.seed != 1 else "")


def _losses(model: RetrievalModel, sequences: task.Sequences) -> Tensor:
    """Returns 0.5 |one-hot answer - output|^2 for every query, as a vector."""
    out = model(sequences.keys, sequences.values, sequences.queries)
    answer = torch.zeros_like(out).scatter_(2, sequences.answers[..., None], 1.0)
    return (out - answer).square().sum(-1).flatten() / 2


@torch.no_grad()
def evaluate(model: RetrievalModel, point: Point, generator: torch.Generator) -> float:
    """Returns the mean loss over the batches of 20 sequences; a batch is up to ``point.batch`` queries of a sequence.

    As in the authors' code, a short last batch counts as much as a full one.
    """
    device = next(model.parameters()).device
    means = []
    for _ in range(EVALUATION_SEQUENCES):
        sequence = task.evaluation_sequence(point.S, point.replace, generator).to(device)
        means += [batch.mean() for batch in _losses(model, sequence).split(point.batch)]
    return torch.stack(means).mean().item()


def evaluations(point: Point, device: str, backend: str) -> Iterator[float]:
    """Trains without end and yields the evaluation loss every 100 steps; draws everything on the CPU, from the seed."""
    torch.manual_seed(point.seed)
    model = RetrievalModel(Variant.of(point.model), point.S, backend).to(device)
    generator = torch.Generator().manual_seed(point.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=point.lr)
    while True:
        for _ in range(EVALUATE_EVERY):
            batch = task.training_batch(point.batch, point.S, point.replace, generator).to(device)
            loss = _losses(model, batch).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield evaluate(model, point, generator)


def train(
    point: Point,
    device: str = "cpu",
    backend: str = "auto",
    max_steps: int = MAX_STEPS,
    report: Callable[[int, float], None] = lambda steps, loss: None,
) -> dict:
    """Runs the point and returns its record, without the environment.

    It ends when the evaluation loss is at most 0.001, after 11 evaluations in a row without a new best loss (NaN is
    never a new best), or after ``max_steps``. ``report`` is called with the steps and the loss of each evaluation.
    """
    begin, used = time.monotonic(), time.process_time()
    served = dict(backends.served)
    losses: list[float] = []
    best, best_step, stop = math.inf, None, "steps"
    for loss in evaluations(point, device, backend):
        losses.append(loss)
        steps = EVALUATE_EVERY * len(losses)
        report(steps, loss)
        if loss < best:
            best, best_step = loss, steps
        if loss <= SOLVED:
            stop = "solved"
        elif steps - (best_step or 0) >= PATIENCE * EVALUATE_EVERY:
            stop = "no progress"
        if stop != "steps" or steps >= max_steps:
            break
    return {
        "table": "synthetic",
        **asdict(point),
        "length": 2 * point.S if point.replace else point.S,
        "batch": point.batch,
        "lr": point.lr,
        "losses": [round(loss, 7) if math.isfinite(loss) else None for loss in losses],
        "best_loss": None if best_step is None else round(best, 7),
        "best_step": best_step,
        "steps": steps,
        "stop": stop,
        "device": device,
        "backends": sorted({key[0] for key, calls in backends.served.items() if calls > served.get(key, 0)}),
        "threads": torch.get_num_threads(),
        "seconds": round(time.monotonic() - begin, 1),
        "cpu_seconds": round(time.process_time() - used, 1),
    }
