"""Times models, fairseq's Transformer among them, in turn on the same batches, in training or decoding."""

import argparse
import gc
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import NamedTuple

import torch
from torch.backends import cuda
from tqdm import tqdm

from fwp_fairseq.cli.processes import cores

from . import models
from .ctranslate2_engine import TYPES
from .gate import Refused
from .models import ATTENTION, ModelCase
from .program import Session, parser, resident_bytes


@dataclass(frozen=True)
class Work:
    """The work to time.

    ``check(task, case, row, device)`` raises Refused if the model is wrong. ``prepare``, with the same arguments,
    returns ``run(sample)``, whose result counts ``unit``. ``repeats`` runs on one batch reach the peak of memory. On a
    CPU ``decoders``, rows that only decode, may be asked for too. ``profile(run, samples, device)``, if there is one,
    returns more fields of a record, of a profiled run over the batches.
    """

    name: str
    unit: str
    cases: dict[str, list[ModelCase]]
    check: Callable
    prepare: Callable
    repeats: int
    decoders: tuple[str, ...] = ()
    profile: Callable | None = None


def _clock(device: str) -> str:
    return "cpu" if device == "cpu" and torch.get_num_threads() == 1 else "wall"


def _timed(run: Callable[[dict], int], sample: dict, device: str) -> tuple[float, int]:
    """Returns the time of ``run`` and its count: CPU time with one thread, wall time with several or on a GPU."""
    # All threads of this process, since an engine has its own.
    now = time.process_time if _clock(device) == "cpu" else time.perf_counter
    if device == "cuda":
        torch.cuda.synchronize()
    start = now()
    count = run(sample)
    if device == "cuda":
        torch.cuda.synchronize()
    return now() - start, count


class Measured(NamedTuple):
    """The results, each by row except ``counts``.

    These are the smallest seconds, summed over the batches; on a GPU the peak of memory on the largest batch, in bytes;
    the reasons why rows were not timed; and which of :data:`_CHOICES` the seconds are of.
    """

    seconds: dict[str, float]
    counts: dict[str, int]
    peaks: dict[str, int]
    refused: dict[str, str]
    kernels: dict[str, str]


# Whether PyTorch may take cuDNN's kernels for softmax attention. fairseq's own model is timed both ways on a GPU, and
# the faster one counts.
_CHOICES = {"PyTorch's choice": True, "without cuDNN": False}


def _choices(row: str, device: str) -> list[str]:
    return list(_CHOICES)[: 2 if (row, device) == ("softmax", "cuda") else 1]


@contextmanager
def _allowed(choice: str) -> Iterator[None]:
    before = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(before and _CHOICES[choice])
    try:
        yield
    finally:
        cuda.enable_cudnn_sdp(before)


# The share of the time limit after which no further row is prepared.
_PREPARING = 0.5


def _warm(work: Work, task, case: ModelCase, row: str, device: str, samples: list[dict]) -> Callable[[dict], int]:
    """Prepares the work, and runs its repeats on the largest batch."""
    run = work.prepare(task, case, row, device)
    largest = max(samples, key=lambda sample: sample["target"].numel())
    for _ in range(work.repeats):
        run(largest)
    return run


def _warm_with_peak(work: Work, task, case: ModelCase, row: str, samples: list[dict]) -> tuple[Callable, int]:
    """Does the same as :func:`_warm`, and also returns the most bytes that torch allocated for it on the GPU."""
    gc.collect()  # models refer to themselves
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run = _warm(work, task, case, row, "cuda", samples)
    return run, torch.cuda.max_memory_allocated() - before


def _turns(samples: list[dict], rounds: int, late: Callable[[], bool]) -> Iterator[tuple[int, dict]]:
    """Yields the batches with their numbers, round after round; after the first round only while there is time."""
    for done in range(rounds):
        for turn in enumerate(samples):
            if done and late():
                return
            yield turn


def measure(
    work: Work, case: ModelCase, rows: list[str], device: str, rounds: int, late=lambda share=1.0: False
) -> Measured:
    """Measures the rows in turn on the same batches.

    ``late(share)`` tells whether this share of the time limit is over. Rows that are not prepared after half of it are
    left out, except the first; every batch is timed at least once.
    """
    task = models.build_task(case)
    samples = models.batches(task, case, device)
    runs, peaks, refused = {}, {}, {}
    for row in rows:
        if runs and late(_PREPARING):
            break
        try:
            work.check(task, case, row, device)
            if device == "cuda":
                runs[row], peaks[row] = _warm_with_peak(work, task, case, row, samples)
            else:
                runs[row] = work.prepare(task, case, row, device)
        except Refused as error:
            refused[row] = str(error)
    best = {(row, choice): [float("inf")] * len(samples) for row in runs for choice in _choices(row, device)}
    counted = [0] * len(samples)
    with tqdm(total=rounds * len(samples) * len(runs), desc=case.name, unit="batch") as progress:
        for number, sample in _turns(samples, rounds, late):
            for row in list(runs):
                try:
                    for choice in _choices(row, device):
                        with _allowed(choice):
                            used, counted[number] = _timed(runs[row], sample, device)
                        best[row, choice][number] = min(best[row, choice][number], used)
                except Refused as error:
                    refused[row] = str(error)
                    del runs[row]
                    continue
                progress.update()
    kernels = {row: min(_choices(row, device), key=lambda choice: sum(best[row, choice])) for row in runs}
    counts = {"sentences": sum(sample["nsentences"] for sample in samples), work.unit: sum(counted)}
    return Measured({row: sum(best[row, kernels[row]]) for row in runs}, counts, peaks, refused, kernels)


def _alone(work: Work, case: ModelCase, row: str, threads: int) -> int:
    logging.disable(logging.INFO)
    torch.set_num_threads(threads)
    task = models.build_task(case)
    _warm(work, task, case, row, "cpu", models.batches(task, case, "cpu"))
    return resident_bytes("VmHWM")


def _profile(work: Work, case: ModelCase, rows: list[str], device: str, session: Session) -> None:
    """Profiles the rows one after the other, prints and records where their time goes."""
    task = models.build_task(case)
    samples = models.batches(task, case, device)
    for row in rows:
        try:
            work.check(task, case, row, device)
            profiled = work.profile(_warm(work, task, case, row, device, samples), samples, device)
        except Refused as error:
            session.failed.append(str(error))
            continue
        cells = [
            f"{name.removesuffix('_seconds')} {used * 1e3:.2f} ms"
            for name, used in profiled.items()
            if used is not None
        ]
        print("  ".join([f"{case.name:16} {row:14}", *cells]), flush=True)
        fields = models.fields(case, row) | {"threads": torch.get_num_threads()}
        session.record(**fields | {"table": f"{work.name}-profile"}, **profiled)


def peak_memory(work: Work, case: ModelCase, row: str) -> int:
    """Returns the peak of resident memory on the largest batch, in bytes, on the CPU and in a separate process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_alone, work, case, row, torch.get_num_threads()).result()


def _options(work: Work, documentation: str) -> argparse.ArgumentParser:
    options = parser(documentation)
    threads = "threads on the CPU; with 1, CPU time counts (default: 2, or 1 on one core)"
    options.add_argument("--threads", type=int, default=min(2, cores()), help=threads)
    more = f", and on a CPU {' '.join(work.decoders)}" if work.decoders else ""
    rows = " ".join(f"'{row}'" if " " in row else row for row in ATTENTION[1:])
    options.add_argument("--rows", nargs="+", metavar="ROW", help=f"in addition to softmax: {rows}{more}")
    options.add_argument("--rounds", type=int, help="passes over the batches (default: the case's)")
    if work.profile:
        options.add_argument(
            "--profile", action="store_true", help="do not time, but profile where an update's time goes"
        )
    options.add_argument("--no-memory", action="store_true", help="do not measure memory, a process for each row")
    return options


def run_program(work: Work, documentation: str, argv: list[str] | None = None) -> int:
    options = _options(work, documentation)
    arguments = options.parse_args(argv)
    wanted = arguments.rows
    known = [*ATTENTION, *(work.decoders if arguments.device == "cpu" else ())]
    if unknown := [row for row in wanted or () if row not in known]:
        options.error(f"--rows: expected some of {', '.join(known[1:])}, found {', '.join(unknown)}")
    logging.disable(logging.INFO)  # fairseq's
    torch.set_num_threads(arguments.threads)
    session = Session(work.name, arguments)
    device = arguments.device
    for case in session.until_deadline(session.chosen(work.cases[device])):
        rows = list(dict.fromkeys(["softmax", *(wanted or case.rows)]))
        if work.profile and arguments.profile:
            _profile(work, case, rows, device, session)
            continue
        measured = measure(work, case, rows, device, arguments.rounds or case.rounds, session.late)
        seconds, counts = measured.seconds, measured.counts
        session.failed += measured.refused.values()
        if left := [row for row in rows if row not in seconds and row not in measured.refused]:
            print(f"--time-limit {arguments.time_limit:g}: left out of {case.name}: {', '.join(left)}", flush=True)
        peaks = {} if arguments.no_memory else measured.peaks
        for row, used in seconds.items():
            if device == "cpu" and not arguments.no_memory and row not in TYPES:  # whose process needs no PyTorch
                peaks[row] = peak_memory(work, case, row)
            speed, peak = counts[work.unit] / used, peaks.get(row)
            ratio = seconds["softmax"] / used if "softmax" in seconds else None
            peak_ratio = peak / peaks["softmax"] if peak and "softmax" in peaks else None
            cells = [f"{case.name:16} {row:14} {speed:10.0f} {work.unit}/s"]
            cells += [f"{counts['sentences'] / used:8.1f} sentences/s"]
            cells += [] if ratio is None else [f"{ratio:.3f} of fairseq's"]
            cells += [] if peak is None else [f"{peak / 2**20:.0f} MiB"]
            cells += [] if peak_ratio is None else [f"{peak_ratio:.2f} of fairseq's"]
            print("  ".join(cells), flush=True)
            session.record(
                **models.fields(case, row), threads=torch.get_num_threads(), clock=_clock(device),
                seconds=used, ratio=ratio, peak_bytes=peak, peak_ratio=peak_ratio,
                softmax_kernels=measured.kernels[row],
                **counts,
                **{f"{unit}_per_second": count / used for unit, count in counts.items()},
            )  # fmt: skip
    return session.status()
