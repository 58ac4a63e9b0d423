"""Paired bootstrap: whether a difference in BLEU may be chance."""

from fwp_fairseq.cli.bleu_tokenizer import bleu_metric
from fwp_fairseq.cli.significance import paired

from .errors import RecipeError

_SAMPLES = 1000


def compare(baseline: list[str], texts: list[str], references: list[str]) -> dict:
    """Returns the BLEU of both and p, the probability of a difference at least as large if both were equally good.

    All are sacreBLEU's, whose signature is returned too. Raises RecipeError unless there is a translation for each
    reference.
    """
    counts = len(baseline), len(texts), len(references)
    if len(set(counts)) > 1:
        raise RecipeError("expected a translation for each of {2} references, actual {0} and {1}".format(*counts))
    systems, metrics = {"baseline": baseline, "row": texts}, {"BLEU": bleu_metric(references)}
    _, results = paired(systems, references, metrics, "bs", _SAMPLES)
    first, second = results["BLEU"]
    return {
        "bleu": round(second.score, 2),
        "baseline_bleu": round(first.score, 2),
        "p": round(second.p_value, 4),
        "signature": second.signature,
    }
