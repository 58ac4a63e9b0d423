"""Paired tests of translations, by sacreBLEU."""

from unittest import mock

import numpy as np

_ROUNDING = 1e-6  # of scores from 0 to 100, whose sums are taken in another order for each sample


def _p_value(differences: np.ndarray, observed: float) -> float:
    """Returns the share of the samples' differences that are at least the observed one, which is a sample itself.

    p = (c + 1) / (n + 1), where c of n samples have such a difference (Noreen 1989; Riezler and Maxwell 2005).
    sacreBLEU counts those above the observed one alone, so that a few different sentences always seem significant.
    """
    return (np.sum(differences >= observed - _ROUNDING).item() + 1) / (len(differences) + 1)


def paired(systems: dict[str, list[str]], references: list[str], metrics: dict, kind: str, samples: int, jobs: int = 1):
    """Returns the signatures and results of sacreBLEU's paired test of the first system with each of the others.

    ``kind`` is "bs" (bootstrap) or "ar" (approximate randomisation).
    """
    from sacrebleu import significance

    (first, texts), *rest = systems.items()
    named = [(f"Baseline: {first}", texts), *rest]  # by which sacreBLEU's table knows it
    test = significance.PairedTest(named, metrics, [references], kind, samples, n_jobs=jobs)
    with mock.patch.object(significance, "_compute_p_value", _p_value):  # its processes are forked within
        signatures, results = test()
    for metric, (baseline, *others) in results.items():
        if metric == "System":
            continue
        for result in (baseline, *others):  # numpy's numbers cannot be written as JSON
            vars(result).update({name: None if x is None else float(x) for name, x in vars(result).items()})
            result.signature = str(signatures[metric])
    return signatures, results
