"""Paired bootstrap: whether a difference in BLEU may be chance."""

_SAMPLES = 1000


def compare(baseline: list[str], texts: list[str], references: list[str]) -> dict:
    """Returns the BLEU of both and p, the probability of a difference at least as large if both were equally good.

    All are sacreBLEU's, whose signature is returned too.
    """
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    named = [("Baseline", baseline), ("row", texts)]
    signatures, results = PairedTest(named, {"BLEU": BLEU()}, [references], "bs", _SAMPLES)()
    first, second = results["BLEU"]
    # sacreBLEU counts the differences above 0, not those of at least 0
    p = 1.0 if second.score == first.score else float(second.p_value)
    return {
        "bleu": round(float(second.score), 2),
        "baseline_bleu": round(float(first.score), 2),
        "p": round(p, 4),
        "signature": str(signatures["BLEU"]),
    }
