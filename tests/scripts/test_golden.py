"""What the comparison of two checkouts calls a difference."""

from scripts.golden import _difference


def measured(*translations: str, losses=({"loss": "1.0"},)) -> dict:
    return {"losses": list(losses), "hypotheses": {str(n): line for n, line in enumerate(translations)}}


def test_missing_translations_and_scores_that_are_no_numbers_are_differences():
    found = measured("-1.0\ta", "-2.0\tb")
    assert _difference(found, measured("-1.0000001\ta", "-2.0\tb")) == ""
    for other in (
        measured("-1.0\ta"),
        measured("-1.0\ta", "-2.0\tb", "-3.0\tc"),
        measured("-1.1\ta", "-2.0\tb"),
        measured("nan\ta", "-2.0\tb"),
        measured("-1.0\ta", "-2.0\tb", losses=({"loss": "1.1"},)),
        measured("-1.0\ta", "-2.0\tb", losses=()),
    ):
        assert _difference(found, other) and _difference(other, found)
    assert "expected nan" in _difference(found, {**found, "hypotheses": {"0": "-1.0\ta", "2": "-2.0\tb"}})
