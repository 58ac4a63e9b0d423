"""Paired tests of translations, by sacreBLEU."""

import os
from functools import partial
from unittest import mock

import numpy as np

from .errors import UsageError

_ROUNDING = 1e-6  # of scores from 0 to 100, whose sums are taken in another order for each sample
_ERRORS = 3  # standard errors of the mean; equal differences that are closer to the observed one can be ties


def _p_value(differences: np.ndarray, observed: float, centred: bool) -> float:
    """Returns p = (c + 1) / (n + 1), where c of n samples differ at least as much as observed.

    The observed difference counts as one more sample (Noreen 1989; Riezler and Maxwell 2005). sacreBLEU counts only
    samples that differ more than observed, so a few different sentences always seem significant. The bootstrap's
    differences are ``centred``: an estimate of their mean was subtracted, which has a standard error. If few sentences
    differ, many samples are equal, and those that this error leaves just below the observed difference count too.
    """
    at_least = differences >= observed - _ROUNDING
    if centred:
        _, sample_of, copies = np.unique(np.round(differences / _ROUNDING), return_inverse=True, return_counts=True)
        error = _ERRORS * differences.std() / len(differences) ** 0.5
        at_least |= (copies[sample_of] > 1) & (differences >= observed - error)
    return (np.sum(at_least).item() + 1) / (len(differences) + 1)


def check_seed() -> None:
    """Raises UsageError if sacreBLEU cannot read its seed."""
    seed = os.environ.get("SACREBLEU_SEED", "none")
    if seed.lower() != "none" and not seed.isdecimal():
        raise UsageError(f"SACREBLEU_SEED {seed}: expected none or a whole number, 0 or more")


def paired(systems: dict[str, list[str]], references: list[str], metrics: dict, kind: str, samples: int, jobs: int = 1):
    """Returns the signatures and results of sacreBLEU's paired test of the first system with each of the others.

    ``kind`` is "bs" (bootstrap) or "ar" (approximate randomisation).
    """
    from sacrebleu import significance

    (first, texts), *rest = systems.items()
    named = [(f"Baseline: {first}", texts), *rest]  # by which sacreBLEU's table knows it
    test = significance.PairedTest(named, metrics, [references], kind, samples, n_jobs=jobs)
    p_value = partial(_p_value, centred=kind == "bs")
    with mock.patch.object(significance, "_compute_p_value", p_value):  # its processes are forked within
        signatures, results = test()
    for metric, (baseline, *others) in results.items():
        if metric == "System":
            continue
        for result in (baseline, *others):  # numpy's numbers cannot be written as JSON
            vars(result).update({name: None if x is None else float(x) for name, x in vars(result).items()})
            result.signature = str(signatures[metric])
    return signatures, results
