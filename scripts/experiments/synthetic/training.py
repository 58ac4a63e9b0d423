"""Trains one model until it has solved the task or stops getting better."""

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict

import torch
from torch import Tensor

from scripts.common.runner.work import called

from . import task
from .model import RetrievalModel
from .rows import EVALUATE_EVERY, PATIENCE, SOLVED, Point

EVALUATION_SEQUENCES, MAX_STEPS = 20, 100_000


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


def evaluations(point: Point, seed: int, device: str) -> Iterator[float]:
    """Trains without end and yields the evaluation loss every 100 steps; draws everything on the CPU, from the seed."""
    torch.manual_seed(seed)
    model = RetrievalModel(point.model, point.S).to(device)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=point.lr)
    while True:
        for _ in range(EVALUATE_EVERY):
            batch = task.training_batch(point.batch, point.S, point.replace, generator).to(device)
            loss = _losses(model, batch).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield evaluate(model, point, generator)


def train(point: Point, seed: int = 1, device: str = "cpu", max_steps: int = MAX_STEPS) -> dict:
    """Runs the point and returns its record, without the environment; prints a line for each evaluation.

    It ends when the evaluation loss is at most 0.001, after 11 evaluations in a row without a new best loss (NaN is
    never a new best), or after ``max_steps``.
    """
    begin, used = time.monotonic(), time.process_time()
    losses: list[float] = []
    best, best_step, stop = math.inf, None, "steps"
    for loss in evaluations(point, seed, device):
        losses.append(loss)
        steps = EVALUATE_EVERY * len(losses)
        print(f"step {steps}, loss {loss:.4f}", flush=True)
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
        "seed": seed,
        "length": 2 * point.S if point.replace else point.S,
        "batch": point.batch,
        "lr": point.lr,
        "losses": [round(loss, 7) if math.isfinite(loss) else None for loss in losses],
        "best_loss": None if best_step is None else round(best, 7),
        "best_step": best_step,
        "steps": steps,
        "stop": stop,
        "device": device,
        "seconds": round(time.monotonic() - begin, 1),
        "cpu_seconds": round(time.process_time() - used, 1),
    }


def _called(arguments: dict) -> dict:
    # FAVOR+ without temperature underflows to denormal numbers, with which it is 10 times slower. The product of any
    # two of them is zero, so they are flushed to zero.
    torch.set_flush_denormal(True)
    seed, device = arguments.pop("seed"), arguments.pop("device")
    return train(Point(**arguments), seed, device)


if __name__ == "__main__":
    called(_called, sys.argv[1:])
