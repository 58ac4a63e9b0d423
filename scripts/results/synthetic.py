"""What scripts/reproduce/synthetic found, beside what the authors published."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fwp_fairseq.tables.table import NONE, NOT_RUN, Table

from .synthetic_figures import SOLVED, end_losses, learning_curves
from .synthetic_models import MODELS
from .synthetic_published import PUBLISHED, Published, published

GRID_STEP = 20
# Two runs whose losses are no further apart than this agree: on an unsolved point two seeds of one model differ so.
SAME_LOSS = 1.25
# Two keys that the model cannot tell apart each answer with the mean of two values; up to FEW of them are luck.
CONFUSED_LOSS, FEW = 0.25, 10
# How far from the number that the paper names the last solved and the first unsolved point may be: three grid steps.
NEAR = 60


class Outcome(NamedTuple):
    """End of a run of ours or of the authors': the best evaluation loss, None where none was a number."""

    loss: float | None
    solved: bool

    def __str__(self) -> str:
        if self.loss is None:
            return "NaN"
        return f"{self.loss:.4f}{'*' if self.solved else ''}" if self.loss < 1 else f"{self.loss:.2f}"


def _ours(record: dict) -> Outcome:
    return Outcome(record["best_loss"], record["stop"] == "solved")


def _theirs(setting: int, model: str, S: int) -> Outcome | None:
    found: Published | None = published(setting, model, S)
    return None if found is None else Outcome(found.loss, found.solved)


def _by_size(records: list[dict], model: str) -> dict[int, Outcome]:
    return {record["S"]: _ours(record) for record in records if record["model"] == model}


def _published_by_size(setting: int, model: str) -> dict[int, Outcome]:
    return {S: Outcome(cell.loss, cell.solved) for (name, S), cell in PUBLISHED[setting].items() if name == model}


# Losses: a row for each number of keys, a column for each model


def _losses(setting: int) -> Table:
    """A row for each size that the authors ran, also where nothing was run here."""

    def cell(model: str, row: dict) -> str:
        theirs = _theirs(setting, model, row["S"])
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
        note=lambda rows: f"Best evaluation loss, ours / the authors'; * solved (at most {SOLVED}); {NONE} not run.",
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


# Claims: a row for each sentence of the paper that a number can decide


class Claim(NamedTuple):
    """``finding``: of outcomes by model and size, a text and whether it bears the claim out; None without them."""

    text: str
    setting: int
    models: tuple[str, ...]
    finding: Callable[[dict[str, dict[int, Outcome]]], tuple[str, bool] | None]


def _fails_near(keys: int, outcomes: dict[str, dict[int, Outcome]]) -> tuple[str, bool] | None:
    """By the largest size that was solved and the next that was run: below it a run may fail for its seed alone. None
    unless sizes near ``keys`` were run, on both sides, and one that was not solved."""
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
    (sizes,) = outcomes.values()
    beyond = [size for size in sizes if size > keys]
    if not beyond:
        return None
    solved = max((S for S in beyond if sizes[S].solved), default=None)
    return (f"not solved at {min(beyond)}", False) if solved is None else (f"solved at {solved}", True)


def _never_solved(outcomes: dict[str, dict[int, Outcome]]) -> tuple[str, bool] | None:
    found = [(o.loss, model, S, o) for model, sizes in outcomes.items() for S, o in sizes.items() if o.loss is not None]
    if not found:
        return None
    _, model, S, lowest = min(found)
    return f"lowest loss {lowest} ({model}, S = {S})", not any(outcome.solved for *_, outcome in found)


def _delta_beats_sum(outcomes: dict[str, dict[int, Outcome]]) -> tuple[str, bool] | None:
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
        "with 20 keys that come again, DPFP-1 with the delta rule ends below 0.001, with the sum rule ten times higher",
        2,
        ("dpfp1-delta", "dpfp1-sum"),
        _delta_beats_sum,
    ),
)


def _claim_of(record: dict) -> tuple | None:
    for number, claim in enumerate(_CLAIMS):
        if (
            record["seed"] == 1
            and record["setting"] == claim.setting
            and record["model"] in claim.models
            and (claim.finding is not _delta_beats_sum or record["S"] == GRID_STEP)
        ):
            return (number,)
    return None


def _of_claim(records: list[dict]) -> dict:
    (number,) = _claim_of(records[-1])
    return {"number": number, "found": {model: _by_size(records, model) for model in _CLAIMS[number].models}}


def _theirs_of(claim: Claim) -> str:
    text, holds = claim.finding({model: _published_by_size(claim.setting, model) for model in claim.models})
    return text if holds else f"{text} (does not bear it out)"


def _finding(row: dict) -> tuple[str, bool] | None:
    return _CLAIMS[row["number"]].finding(row["found"])


def _text(row: dict) -> str:
    found = _finding(row)
    return NOT_RUN if found is None else found[0]


def _holds(row: dict) -> str:
    found = _finding(row)
    return NOT_RUN if found is None else ("yes" if found[1] else "no")


# Differences: the points where ours and theirs do not agree


def _disagreement(record: dict) -> str | None:
    """What differs, None where the two agree or there is nothing to compare with."""
    ours, theirs = _ours(record), _theirs(record["setting"], record["model"], record["S"])
    if theirs is None or (ours.solved and theirs.solved) or ours.loss == theirs.loss:
        return None
    if ours.solved or theirs.solved:
        return "only here solved" if ours.solved else "only there solved"
    if ours.loss is None or theirs.loss is None:
        return "NaN there" if theirs.loss is None else "NaN here"
    ratio = ours.loss / theirs.loss
    return None if 1 / SAME_LOSS <= ratio <= SAME_LOSS else f"loss {ratio:.2f} times theirs"


def _reason(record: dict) -> str:
    setting, model, S = record["setting"], record["model"], record["S"]
    if "favor" in model and model.endswith("delta"):
        return "features underflow: 0/0 there, 0 here (eps)"
    if model.endswith("fwm"):
        return "the loss falls slowly and unevenly; it ends when 11 evaluations in a row bring nothing"
    solved = {_theirs(setting, model, S + step * GRID_STEP) for step in (-2, -1, 0, 1, 2)} - {None}
    if {outcome.solved for outcome in solved} == {True, False}:
        return "at the edge of the capacity, where seeds differ"
    losses = [outcome.loss for outcome in (_ours(record), _theirs(setting, model, S)) if not outcome.solved]
    confused = round(max(losses) * S / CONFUSED_LOSS)
    if confused <= FEW:
        return f"about {confused} of {S} keys still taken for one another, which seeds decide"
    return "one seed each; no other cause known"


TABLES = {
    "synthetic-claims": Table(
        columns={
            "the paper's claim": lambda row: _CLAIMS[row["number"]].text,
            "authors": lambda row: _theirs_of(_CLAIMS[row["number"]]),
            "here": _text,
            "holds here": _holds,
        },
        key=_claim_of,
        combine=_of_claim,
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
            "authors": lambda record: _theirs(record["setting"], record["model"], record["S"]),
            "difference": _disagreement,
            "why": _reason,
        },
        key=lambda r: (r["setting"], r["model"], r["S"], r["seed"]) if _disagreement(r) and r["seed"] == 1 else None,
        select={"table": "synthetic"},
        note=lambda rows: f"Points that both solved, or whose losses are within a factor of {SAME_LOSS}, agree.",
    ),
}  # fmt: skip
