"""Tables of the programs in benchmarks/: speed and memory beside those of softmax attention."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import mode

from fwp_fairseq.tables.plot import Plot, Series
from fwp_fairseq.tables.table import NONE, NOT_RUN, Number, Table, number, update_rule
from scripts.common.cells import d_dot, fields

# The delta rule and the nets of benchmarks/recurrent.py.
_DELTA_RULE = "elu,update-rule=delta"
_RECURRENT = ("delta-rnn", "recurrent-delta", "delta-lstm", "delta-mlp", "delta-delta")


def parts(records: list[dict]) -> dict:
    """Combines records into one row: ``parts`` maps each part (forward, both, decode, reorder) to its newest record."""
    return {**records[-1], "parts": {record["part"]: record for record in records}}


def _of(part: str, cell: Callable[[dict], object]) -> Callable[[dict], object]:
    """Returns a column that shows a cell of the row's record of this part."""
    return lambda row: cell(row["parts"][part]) if part in row["parts"] else NOT_RUN


def _measured(group: str, name: str, style: str = ".2f", scale: float = 1) -> Callable[[dict], object]:
    return lambda record: Number(record[group][name] * scale, style) if name in record[group] else NONE


_seconds, _ratio = (partial(_measured, group) for group in ("seconds", "ratios"))


def conditions(rows: list[dict]) -> str:
    """Returns the note of a table: machine, commit, date and load of its records."""
    if not rows:
        return "There are no records yet."
    records = [record for row in rows for record in row.get("parts", {"": row}).values()]
    lines = {}
    for record in records:
        where = record["environment"]
        lines.setdefault((record["where"], where["commit"], where["date"][:10]), []).append(record["load"][0])
    return "\n".join(
        f"{machine}, commit {(commit or 'unknown')[:10]}, {date}, under a load of {min(load):.1f} to {max(load):.1f}."
        for (machine, commit, date), load in lines.items()
    )


_CASE = {"machine": "where", "type": "dtype", "rule": "rule"}


def _shape(record: dict) -> tuple:
    # float32 comes before float16 and bfloat16
    return (record["dtype"][::-1], record["rows"] * -1, record["length"], record["d_dot"], record["rule"] == "delta")


def _operator(device: str, columns: dict[str, Callable[[dict], object]]) -> Table:
    return Table(
        columns=fields(_CASE | {"B·H": "rows", "length": "length", "d_dot": "d_dot"}) | columns,
        key=lambda r: (r["where"], *_shape(r)),
        combine=parts,
        note=conditions,
        select={"table": "attention", "device": device},
    )


def _steps(device: str, scale: float, unit: str) -> Table:
    columns = {
        **fields(_CASE | {"history": "length", "d_dot": "d_dot"}),
        f"step, {unit}": _of("decode", _seconds("ours", ".2f", scale)),
        f"softmax, {unit}": _of("decode", _seconds("softmax", ".2f", scale)),
        "ratio": _of("decode", _ratio("softmax")),
        "over the state step": _of("decode", _ratio("state")),
    }
    if device == "cpu":
        columns["reordering over step"] = _of("reorder", _ratio("step", ".1%"))
    return Table(
        columns=columns,
        key=lambda r: (r["where"], r["dtype"][::-1], r["rule"], r["length"], r["d_dot"]),
        combine=parts,
        note=conditions,
        select={"table": "decode-step", "device": device},
    )


def _speed_and_memory(unit: str) -> dict[str, Callable[[dict], object]]:
    return {
        f"{unit}/s": number(f"{unit}_per_second", ",.0f"),
        "speed over fairseq's": number("ratio", ".2f"),
        "memory, MiB": number("peak_bytes", ",.0f", 2**-20),
        "memory over fairseq's": number("peak_ratio", ".2f"),
    }


def _is_mixed(record: dict) -> bool:
    """Tells whether the sites of a record's model have different kinds of attention."""
    return record["attention"].startswith(("hybrid", "passages"))


def _model(r: dict) -> tuple:
    return (
        r["where"], -r["threads"], ("mini", "small", "tiny", "base", "big").index(r["size"]), r["data"].isdigit(),
        r["data"], r["max_tokens"], r["update_rule"] or "", r["feature_map"] != "softmax",
        r["attention"] * _is_mixed(r), r["backend"] or "", r["feature_map"], r["d_dot"] or 0,
    )  # fmt: skip


# What the words of an attention in records are in tables.
_WORDS = {"packed": "prepacked", "window": "source window", "passages": "hybrid for passages"}


def _attention(record: dict) -> str:
    if _is_mixed(record):
        return ", ".join(_WORDS.get(word, word) for word in record["attention"].split("-"))
    engine = {None: "", "auto": "", "chunked": ", PyTorch"}.get(record["backend"], f", {record['backend']}")
    return record["feature_map"] + engine


def _models(name: str, columns: dict[str, Callable[[dict], object]], key: Callable = _model) -> Table:
    return Table(
        columns={
            **fields({"machine": "where", "model": "size", "data": "data"}),
            "tokens in a batch": number("max_tokens", ","),
            "attention": _attention,
            "rule": update_rule,
            "d_dot": d_dot,
            "threads": lambda r: r["threads"] if r["device"] == "cpu" else NONE,
            **columns,
        },
        key=key,
        note=conditions,
        select={"table": name},
    )


def _length(data: str) -> tuple[bool, int]:
    """Returns the length of outputs, such as 256, after True if sources are sentences, as in sentence-256."""
    return not data.isdigit(), int(data.removeprefix("sentence-"))


def _by_length(r: dict) -> tuple:
    return (r["where"], *_length(r["data"]), *_model(r)[1:])


# What the figure compares, by attention and backend of the records.
_LINES = {
    ("softmax", None): "fairseq's Transformer",
    ("hybrid", "auto"): "hybrid in fairseq-generate",
    ("hybrid-packed", "auto"): "hybrid in fwp translate",
}


def _with_memory(records: list[dict]) -> dict:
    """Returns the newest record, with the memory of the newest one that has it: some runs measure the time alone."""
    measured = next((record for record in reversed(records) if record["peak_bytes"]), {})
    return {**records[-1], **{name: measured[name] for name in ("peak_bytes", "peak_ratio") if name in measured}}


def _over_length(rows: list[dict]) -> Plot:
    """Plots speed and, beside it, memory of the base models on the machine where most of them were measured."""
    base = [row for row in rows if row["size"] == "base" and row["data"].isdigit()]
    where = mode(row["where"] for row in base)

    def series(value: Callable[[dict], float | None]) -> list[Series]:
        points: dict[str, dict] = {label: {} for label in _LINES.values()}
        for row in base:
            label = _LINES.get((row["attention"], row["backend"]))
            if row["where"] == where and label and (y := value(row)) is not None:
                points[label][int(row["data"])] = (y, None)
        return [Series(label, label, line) for label, line in points.items() if line]

    x = "tokens in each translation"
    memory = series(lambda row: row["peak_bytes"] and row["peak_bytes"] / 2**20)
    return Plot(
        x, "tokens per second", series(lambda row: row["tokens_per_second"]), title=f"speed on one core, {where}",
        y_range=(0, None),
        beside=[Plot(x, "MiB", memory, title="peak memory of the process", y_range=(0, None))],
    )  # fmt: skip


TABLES = {
    "attention": _operator(
        "cpu",
        {
            "softmax, ms": _of("forward", _seconds("softmax", ".2f", 1e3)),
            "ratio": _of("forward", _ratio("softmax")),
            "softmax forward + backward, ms": _of("both", _seconds("softmax", ".2f", 1e3)),
            "its ratio": _of("both", _ratio("softmax")),
        },
    ),
    "attention-gpu": _operator(
        "cuda",
        {
            "µs": _of("forward", _seconds("ours", ".1f", 1e6)),
            "over softmax": _of("forward", _ratio("softmax")),
            "forward + backward, µs": _of("both", _seconds("ours", ".1f", 1e6)),
            "both, over softmax": _of("both", _ratio("softmax")),
        },
    ),
    "decode-step": _steps("cpu", 1e3, "ms"),
    "decode-step-gpu": _steps("cuda", 1e6, "µs"),
    "recurrent": Table(
        columns={
            **fields({"machine": "where", "measured": "what"}),
            "part": lambda r: {"forward": "forward", "both": "forward + backward"}[r["part"]],
            "positions": lambda r: r["length"],
            f"{_DELTA_RULE}, ms": _seconds(_DELTA_RULE, ".1f", 1e3),
        }
        | {name: _ratio(name) for name in _RECURRENT},
        key=lambda r: (r["where"], r["what"] != "net", r["part"] == "both", r["length"]),
        note=conditions,
    ),
    "training": _models("training", _speed_and_memory("words")),
    "language-model-training": Table(
        columns={
            **fields({"machine": "where", "size": "size", "segment": "length", "attention": "feature_map"}),
            "rule": update_rule,
            "d_dot": d_dot,
            "state": lambda r: "carried" if r["carries"] else NONE,
            "tokens/s": number("tokens_per_second", ",.0f"),
            "speed over softmax": number("ratio", ".2f"),
            "over the same without carried state": number("over_reset", ".2f"),
        },
        key=lambda r: (r["where"], r["length"], r["carries"], r["update_rule"] or "", r["feature_map"]),
        note=conditions,
    ),
    "decoding": _models("decoding", _speed_and_memory("tokens")),
    "decoding-length": replace(
        _models("decoding-length", _speed_and_memory("tokens"), _by_length), combine=_with_memory, plot=_over_length
    ),
}
