"""p-values of paired tests against exact ones, for which all samples are enumerated."""

from itertools import product

import numpy as np
import pytest
from sacrebleu.metrics import METRICS

from fwp_fairseq.cli.significance import paired

REFERENCES = [
    f"the {animal} number {n} sees a {colour} house near the old river bank"
    for n, (animal, colour) in enumerate(product(("dog", "cat", "cow", "hen", "fox", "owl"), ("red", "blue")))
]


def systems(different: list[int], total: int):
    references = [REFERENCES[n % len(REFERENCES)] for n in range(total)]
    first = [text.replace("river", "lake") for text in references]
    second = [text if n in different else first[n] for n, text in enumerate(references)]
    return first, second, references


def score(metric, hypotheses, references):
    return metric.corpus_score(hypotheses, [references]).score


def exact_by_swaps(metric, first, second, references):
    """The share of all swaps of the sentences of two systems that differ at least as much as these do."""
    places = [n for n, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]]
    differences = []
    for swaps in product((False, True), repeat=len(places)):
        one, other = list(first), list(second)
        for place in (place for place, swap in zip(places, swaps, strict=True) if swap):
            one[place], other[place] = other[place], one[place]
        differences.append(abs(score(metric, one, references) - score(metric, other, references)))
    return np.mean([difference >= differences[0] - 1e-6 for difference in differences])


def exact_by_resampling(metric, first, second, references):
    """The share of all resamples whose difference exceeds the mean by at least the observed one."""
    differences = []
    for chosen in product(range(len(references)), repeat=len(references)):
        one, other, truth = ([texts[n] for n in chosen] for texts in (first, second, references))
        differences.append(abs(score(metric, one, truth) - score(metric, other, truth)))
    observed = abs(score(metric, first, references) - score(metric, second, references))
    return np.mean(np.array(differences) - np.mean(differences) >= observed - 1e-6)


def p_value(metric, first, second, references, kind, samples):
    _, results = paired({"a": first, "b": second}, references, {"M": metric}, kind, samples)
    (_, name) = results
    return results[name][1].p_value


@pytest.mark.parametrize("name", ["BLEU", "CHRF", "TER"])
@pytest.mark.parametrize("sentences", [1, 4, 7])
def test_swaps_have_the_exact_p_value_with_every_metric(name, sentences):
    first, second, references = systems([n for n in range(sentences) if n != 2], sentences)
    if sentences > 4:  # each system is better somewhere
        second[2] = "a quite different sentence of no worth"
    metric = METRICS[name]()
    exact = exact_by_swaps(metric, first, second, references)
    found = p_value(metric, first, second, references, "ar", 3000)
    assert found == pytest.approx(exact, abs=3.5 * np.sqrt(exact * (1 - exact) / 3000) + 1 / 3000)


@pytest.mark.parametrize("name", ["BLEU", "CHRF", "TER"])
def test_resamples_have_the_exact_p_value_with_every_metric(name):
    first, second, references = systems([0, 2], 4)
    second[1] = second[1].replace("near the old", "at a")  # so that no difference is twice another one
    metric = METRICS[name]()
    exact = exact_by_resampling(metric, first, second, references)
    found = p_value(metric, first, second, references, "bs", 3000)
    assert found == pytest.approx(exact, abs=3.5 * np.sqrt(exact * (1 - exact) / 3000) + 1 / 3000)


@pytest.mark.parametrize("name", ["BLEU", "CHRF", "TER"])
def test_ties_of_resamples_do_not_depend_on_the_seed(monkeypatch, name):
    """Two copies of the only different sentence exceed the mean by as much as one copy is worth."""
    references = REFERENCES[:1] * 4
    first = [references[0].replace("river", "lake"), *references[1:]]
    metric = METRICS[name]()
    exact = exact_by_resampling(metric, first, references, references)
    for seed in range(6):
        monkeypatch.setenv("SACREBLEU_SEED", str(seed))
        assert p_value(metric, first, references, references, "bs", 1000) == pytest.approx(exact, abs=0.05)


def test_the_observed_difference_is_a_sample():
    """With one sentence every resample is the observed one: p = (n + 1) / (n + 1)."""
    texts = systems([0], 1)
    assert p_value(METRICS["BLEU"](), *texts, "ar", 10) == 1
