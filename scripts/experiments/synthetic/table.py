"""The tables of the synthetic task: our results beside those that the authors published."""

from functools import partial

from fwp_fairseq.tables.table import NONE, NOT_RUN, Table

from .figures import end_losses, learning_curves
from .outcomes import Outcome, of_record, published
from .rows import MODELS, SOLVED

GRID_STEP = 20
# The last solved and the first unsolved point may be this far from the number in the paper: three grid steps.
NEAR = 60


# Tables of losses, with a row for each number of keys and a column for each model


def _losses(setting: int) -> Table:
    """Returns the table of a setting, with a row for each number of keys that the authors or we ran."""

    def cell(model: str, row: dict) -> str:
        theirs = published(setting).get((model, row["S"]))
        return f"{row.get('outcomes', {}).get(model, NONE)} / {NONE if theirs is None else theirs}"

    def combine(records: list[dict]) -> dict:
        losses: dict[str, list[float]] = {}
        for record in records:
            if record["best_loss"] is not None:
                losses.setdefault(record["model"], []).append(record["best_loss"])
        outcomes = {record["model"]: of_record(record) for record in records if record["seed"] == 1}
        return {**records[-1], "outcomes": outcomes, "losses": losses}

    return Table(
        columns={"S": lambda row: row["S"]} | {model: partial(cell, model) for model in MODELS[setting]},
        key=lambda record: (record["S"],),
        combine=combine,
        expected=[{"S": S} for S in sorted({S for _, S in published(setting)})],
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
            "best loss": of_record,
            "ended": lambda record: record["stop"],
        },
        key=lambda record: (MODELS[setting].index(record["model"]), record["S"], record["seed"]),
        select={"table": "synthetic", "setting": setting},
        plot=partial(learning_curves, setting),
    )


# The table of claims, with a row for each sentence of the paper that a number can confirm or refute. A finding receives
# outcomes by model and number of keys. It returns a text and whether they confirm the claim, or None if they do not
# suffice to tell.

Finding = tuple[str, bool] | None


def _fails_near(keys: int, outcomes: dict[str, dict[int, Outcome]]) -> Finding:
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


def _solves_beyond(keys: int, outcomes: dict[str, dict[int, Outcome]]) -> Finding:
    """Finding: a size above ``keys`` was solved."""
    (sizes,) = outcomes.values()
    beyond = [size for size in sizes if size > keys]
    solved = max((S for S in beyond if sizes[S].solved), default=None)
    if solved is not None:
        return f"solved at {solved}", True
    return (f"not solved at {min(beyond)}", False) if beyond else None


def _never_solved(outcomes: dict[str, dict[int, Outcome]]) -> Finding:
    """Finding: none of the models solved any size."""
    found = [(o.loss, model, S, o) for model, sizes in outcomes.items() for S, o in sizes.items() if o.loss is not None]
    if not found:
        return None
    _, model, S, lowest = min(found)
    return f"lowest loss {lowest} ({model}, S = {S})", not any(outcome.solved for *_, outcome in found)


def _delta_beats_sum(outcomes: dict[str, dict[int, Outcome]]) -> Finding:
    """Finding: with GRID_STEP keys, DPFP-1 solves the task with the delta rule; the sum rule has ten times its loss."""
    found = [outcomes[model].get(GRID_STEP) for model in ("dpfp1-delta", "dpfp1-sum")]
    if None in found:
        return None
    delta, total = found
    return f"delta {delta}, sum {total}", delta.loss < SOLVED and total.loss >= 10 * delta.loss


# Of each claim: what it says, of which setting and models, and its finding.
_CLAIMS = (
    ("ELU+1 starts to fail at about 60 keys", 1, ("elu-sum",), partial(_fails_near, 60)),
    ("DPFP-1 fails from about 128 keys", 1, ("dpfp1-sum",), partial(_fails_near, 128)),
    ("DPFP-2 fails from about 256 keys", 1, ("dpfp2-sum",), partial(_fails_near, 256)),
    ("DPFP-3 fails from about 384 keys", 1, ("dpfp3-sum",), partial(_fails_near, 384)),
    ("softmax goes far beyond all of them", 1, ("softmax",), partial(_solves_beyond, 384)),
    ("FAVOR+ never reaches zero", 1, ("favor64-sum", "favor128-sum", "favor512-sum"), _never_solved),
    (
        "with 20 repeated keys, DPFP-1 ends below 0.001 with the delta rule, and ten times higher with the sum rule",
        2,
        ("dpfp1-delta", "dpfp1-sum"),
        _delta_beats_sum,
    ),
)


def _claim_key(record: dict) -> tuple | None:
    if record["seed"] == 1:
        for number, (_, setting, models, _) in enumerate(_CLAIMS):
            if record["setting"] == setting and record["model"] in models:
                return (number,)
    return None


def _claim(records: list[dict]) -> dict:
    (number,) = _claim_key(records[-1])
    _, _, models, finding = _CLAIMS[number]
    ours = {model: {r["S"]: of_record(r) for r in records if r["model"] == model} for model in models}
    text, holds = finding(ours) or (NOT_RUN, None)
    return {"number": number, "here": text, "holds": {True: "yes", False: "no", None: NOT_RUN}[holds]}


def _authors(row: dict) -> str:
    _, setting, models, finding = _CLAIMS[row["number"]]
    theirs = published(setting)
    text, holds = finding({model: {S: o for (name, S), o in theirs.items() if name == model} for model in models})
    return text if holds else f"{text} (does not confirm the claim)"


TABLES = {
    "synthetic-claims": Table(
        columns={
            "the paper's claim": lambda row: _CLAIMS[row["number"]][0],
            "authors": _authors,
            "here": lambda row: row["here"],
            "holds here": lambda row: row["holds"],
        },
        key=_claim_key,
        combine=_claim,
        expected=[{"number": number} for number in range(len(_CLAIMS))],
        select={"table": "synthetic"},
    ),
    "synthetic-capacity": _losses(1),
    "synthetic-capacity-curves": _curves(1),
    "synthetic-update-rules": _losses(2),
    "synthetic-update-rules-curves": _curves(2),
}  # fmt: skip
