"""The tables of the synthetic task: our results beside those that the authors published."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fwp_fairseq.tables.table import NONE, NOT_RUN, Table

from .figures import end_losses, learning_curves
from .published import PUBLISHED, Published, published
from .rows import MODELS, SOLVED

GRID_STEP = 20
# Two runs agree if their losses are within this factor: so much do two seeds of one model differ on an unsolved point.
SAME_LOSS = 1.25
# If the model cannot tell two keys apart, it answers both with the mean of their values, which costs each this loss.
# Whether up to FEW keys are confused is a matter of chance.
CONFUSED_LOSS, FEW = 0.25, 10
# The last solved and the first unsolved point may be this far from the number in the paper: three grid steps.
NEAR = 60


class Outcome(NamedTuple):
    """The result of a run, ours or the authors'. ``loss`` is the best evaluation loss, None if all were NaN."""

    loss: float | None
    solved: bool

    def __str__(self) -> str:
        if self.loss is None:
            return "NaN"
        return f"{self.loss:.4f}{'*' if self.solved else ''}" if self.loss < 1 else f"{self.loss:.2f}"


def _ours(record: dict) -> Outcome:
    return Outcome(record["best_loss"], record["stop"] == "solved")


def _authors(setting: int, model: str, S: int) -> Outcome | None:
    found: Published | None = published(setting, model, S)
    return None if found is None else Outcome(found.loss, found.solved)


def _by_size(records: list[dict], model: str) -> dict[int, Outcome]:
    return {record["S"]: _ours(record) for record in records if record["model"] == model}


def _published_by_size(setting: int, model: str) -> dict[int, Outcome]:
    return {S: Outcome(cell.loss, cell.solved) for (name, S), cell in PUBLISHED[setting].items() if name == model}


# Tables of losses, with a row for each number of keys and a column for each model


def _losses(setting: int) -> Table:
    """Returns the table of a setting, with a row for each number of keys that the authors or we ran."""

    def cell(model: str, row: dict) -> str:
        theirs = _authors(setting, model, row["S"])
        return f"{row.get('outcomes', {}).get(model, NONE)} / {NONE if theirs is None else theirs}"

    def combine(records: list[dict]) -> dict:
        losses: dict[str, list[float]] = {}
        for record in records:
            if record["best_loss"] is not None:
                losses.setdefault(record["model"], []).append(record["best_loss"])
        outcomes = {record["model"]: _ours(record) for record in records if record["seed"] == 1}
        return {**records[-1], "outcomes": outcomes, "losses": losses}

    return Table(
        columns={"S": lambda row: row["S"]} | {model: partial(cell, model) for model in MODELS[setting]},
        key=lambda record: (record["S"],),
        combine=combine,
        expected=[{"S": S} for S in sorted({S for _, S in PUBLISHED[setting]})],
        select={"table": "synthetic", "setting": setting},
        note=lambda rows: (
            f"Each cell: best evaluation loss, ours / the authors'. * solved (at most {SOLVED}); {NONE} not run."
        ),
        plot=partial(end_losses, setting),
    )


def _curves(setting: int) -> Table:
    return Table(
        columns={
            "model": lambda record: record["model"],
            "S": lambda record: record["S"],
            "seed": lambda record: record["seed"],
            "steps": lambda record: record["steps"],
            "best loss": _ours,
            "ended": lambda record: record["stop"],
        },
        key=lambda record: (MODELS[setting].index(record["model"]), record["S"], record["seed"]),
        select={"table": "synthetic", "setting": setting},
        plot=partial(learning_curves, setting),
    )


# The table of claims, with a row for each sentence of the paper that a number can confirm or refute


class Claim(NamedTuple):
    """A claim of the paper about the models in one setting.

    ``finding`` receives outcomes by model and number of keys. It returns a text and whether the outcomes confirm the
    claim, or None if they do not suffice to tell.
    """

    text: str
    setting: int
    models: tuple[str, ...]
    finding: Callable[[dict[str, dict[int, Outcome]]], tuple[str, bool] | None]


def _fails_near(keys: int, outcomes: dict[str, dict[int, Outcome]]) -> tuple[str, bool] | None:
    """Finding: the largest size that was solved and the next one that was run are both near ``keys``.

    A smaller size may be unsolved, because a run can fail for its seed alone. Returns None unless sizes near ``keys``
    were run on both sides of it.
    """
    (sizes,) = outcomes.values()
    if {size < keys for size in sizes if abs(size - keys) <= NEAR} != {True, False}:
        return None
    solved = max((size for size, outcome in sizes.items() if outcome.solved), default=0)
    unsolved = min((size for size in sizes if size > solved), default=None)
    if unsolved is None and solved - keys <= NEAR:
        return None
    unlucky = [str(size) for size in sorted(sizes) if size < solved and not sizes[size].solved]
    but = f" (but not at {', '.join(unlucky)})" if unlucky else ""
    text = f"solved up to {solved}{but}" + ("" if unsolved is None else f", not at {unsolved}")
    return text, abs(solved - keys) <= NEAR and unsolved is not None and abs(unsolved - keys) <= NEAR


def _solves_beyond(keys: int, outcomes: dict[str, dict[int, Outcome]]) -> tuple[str, bool] | None:
    """Finding: a size above ``keys`` was solved."""
    (sizes,) = outcomes.values()
    beyond = [size for size in sizes if size > keys]
    if not beyond:
        return None
    solved = max((S for S in beyond if sizes[S].solved), default=None)
    return (f"not solved at {min(beyond)}", False) if solved is None else (f"solved at {solved}", True)


def _never_solved(outcomes: dict[str, dict[int, Outcome]]) -> tuple[str, bool] | None:
    """Finding: none of the models solved any size."""
    found = [(o.loss, model, S, o) for model, sizes in outcomes.items() for S, o in sizes.items() if o.loss is not None]
    if not found:
        return None
    _, model, S, lowest = min(found)
    return f"lowest loss {lowest} ({model}, S = {S})", not any(outcome.solved for *_, outcome in found)


def _delta_beats_sum(outcomes: dict[str, dict[int, Outcome]]) -> tuple[str, bool] | None:
    """Finding: with GRID_STEP keys, DPFP-1 solves the task with the delta rule; the sum rule has ten times its loss."""
    found = [outcomes[model].get(GRID_STEP) for model in ("dpfp1-delta", "dpfp1-sum")]
    if None in found:
        return None
    delta, total = found
    return f"delta {delta}, sum {total}", delta.loss < SOLVED and total.loss >= 10 * delta.loss


_CLAIMS = (
    Claim("ELU+1 starts to fail at about 60 keys", 1, ("elu-sum",), partial(_fails_near, 60)),
    Claim("DPFP-1 fails from about 128 keys", 1, ("dpfp1-sum",), partial(_fails_near, 128)),
    Claim("DPFP-2 fails from about 256 keys", 1, ("dpfp2-sum",), partial(_fails_near, 256)),
    Claim("DPFP-3 fails from about 384 keys", 1, ("dpfp3-sum",), partial(_fails_near, 384)),
    Claim("softmax goes far beyond all of them", 1, ("softmax",), partial(_solves_beyond, 384)),
    Claim("FAVOR+ never reaches zero", 1, ("favor64-sum", "favor128-sum", "favor512-sum"), _never_solved),
    Claim(
        "with 20 repeated keys, DPFP-1 ends below 0.001 with the delta rule, and ten times higher with the sum rule",
        2,
        ("dpfp1-delta", "dpfp1-sum"),
        _delta_beats_sum,
    ),
)


def _claim_key(record: dict) -> tuple | None:
    for number, claim in enumerate(_CLAIMS):
        if (
            record["seed"] == 1
            and record["setting"] == claim.setting
            and record["model"] in claim.models
            and (claim.finding is not _delta_beats_sum or record["S"] == GRID_STEP)
        ):
            return (number,)
    return None


def _combine_claim(records: list[dict]) -> dict:
    (number,) = _claim_key(records[-1])
    return {"number": number, "found": {model: _by_size(records, model) for model in _CLAIMS[number].models}}


def _authors_finding(claim: Claim) -> str:
    text, holds = claim.finding({model: _published_by_size(claim.setting, model) for model in claim.models})
    return text if holds else f"{text} (does not confirm the claim)"


def _finding(row: dict) -> tuple[str, bool] | None:
    return _CLAIMS[row["number"]].finding(row["found"])


def _finding_text(row: dict) -> str:
    found = _finding(row)
    return NOT_RUN if found is None else found[0]


def _verdict(row: dict) -> str:
    found = _finding(row)
    return NOT_RUN if found is None else ("yes" if found[1] else "no")


# The table of differences: the points where our result and the authors' do not agree


def _disagreement(record: dict) -> str | None:
    """Returns how our result differs from the authors', or None if they agree or the authors have no result."""
    ours, theirs = _ours(record), _authors(record["setting"], record["model"], record["S"])
    if theirs is None or (ours.solved and theirs.solved) or ours.loss == theirs.loss:
        return None
    if ours.solved or theirs.solved:
        return "solved only here" if ours.solved else "solved only there"
    if ours.loss is None or theirs.loss is None:
        return "NaN there" if theirs.loss is None else "NaN here"
    ratio = ours.loss / theirs.loss
    return None if 1 / SAME_LOSS <= ratio <= SAME_LOSS else f"loss {ratio:.2f} times theirs"


def _reason(record: dict) -> str:
    """Returns the likely cause of a difference."""
    setting, model, S = record["setting"], record["model"], record["S"]
    if "favor" in model and model.endswith("delta"):
        return "features underflow: 0/0 there, 0 here (eps)"
    if model.endswith("fwm"):
        return "the loss falls slowly and unevenly, and training ends after 11 evaluations without a new best"
    solved = {_authors(setting, model, S + step * GRID_STEP) for step in (-2, -1, 0, 1, 2)} - {None}
    if {outcome.solved for outcome in solved} == {True, False}:
        return "at the edge of the capacity, where seeds differ"
    losses = [outcome.loss for outcome in (_ours(record), _authors(setting, model, S)) if not outcome.solved]
    confused = round(max(losses) * S / CONFUSED_LOSS)
    if confused <= FEW:
        return f"about {confused} of {S} keys are still confused with each other; how many depends on the seed"
    return "one seed each; no other cause is known"


TABLES = {
    "synthetic-claims": Table(
        columns={
            "the paper's claim": lambda row: _CLAIMS[row["number"]].text,
            "authors": lambda row: _authors_finding(_CLAIMS[row["number"]]),
            "here": _finding_text,
            "holds here": _verdict,
        },
        key=_claim_key,
        combine=_combine_claim,
        expected=[{"number": number} for number in range(len(_CLAIMS))],
        select={"table": "synthetic"},
    ),
    "synthetic-capacity": _losses(1),
    "synthetic-capacity-curves": _curves(1),
    "synthetic-update-rules": _losses(2),
    "synthetic-update-rules-curves": _curves(2),
    "synthetic-differences": Table(
        columns={
            "setting": lambda record: record["setting"],
            "model": lambda record: record["model"],
            "S": lambda record: record["S"],
            "here": lambda record: _ours(record),
            "authors": lambda record: _authors(record["setting"], record["model"], record["S"]),
            "difference": _disagreement,
            "why": _reason,
        },
        key=lambda r: (r["setting"], r["model"], r["S"], r["seed"]) if _disagreement(r) and r["seed"] == 1 else None,
        select={"table": "synthetic"},
        note=lambda rows: f"A point agrees if both solved it, or if the two losses are within a factor of {SAME_LOSS}.",
    ),
}  # fmt: skip
