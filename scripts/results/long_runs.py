"""Tables of work that goes on for long: whether its time and memory grow, and how exact a carried state stays."""

from collections.abc import Callable

from fwp_fairseq.tables.table import NOT_RUN, Number, Table, update_rule

from .benchmarks import conditions

_RUNS = {
    "calls": "calls of beam search",
    "updates": "updates",
    "document": "tokens of a translated document",
    "continued": "tokens of a continued text",
}


def _point(number: int, field: str, style: str, scale: float) -> Callable[[dict], Number]:
    return lambda record: Number(record["points"][number][field] * scale, style)


def _error(field: str, positions: int) -> Callable[[dict], object]:
    def cell(record: dict) -> object:
        found = [point[field] for point in record["points"] if point["positions"] == positions]
        return Number(found[0], ".1e") if found else NOT_RUN

    return cell


TABLES = {
    "long-runs": Table(
        columns={
            "what": lambda r: f"{r['count']:,} {_RUNS[r['run']]}",
            "attention": lambda r: r["feature_map"],
            "rule": update_rule,
            "first tenth, ms each": _point(0, "seconds", ".2f", 1e3),
            "last tenth, ms each": _point(-1, "seconds", ".2f", 1e3),
            "after the first tenth, MiB": _point(0, "resident_bytes", ".1f", 2**-20),
            "at the middle, MiB": _point(4, "resident_bytes", ".1f", 2**-20),
            "at the end, MiB": _point(-1, "resident_bytes", ".1f", 2**-20),
        },
        key=lambda r: (
            list(_RUNS).index(r["run"]),
            r["update_rule"] is not None,
            r["feature_map"],
            r["update_rule"] or "",
        ),
        note=conditions,
    ),
    "carried-precision": Table(
        columns={
            "rule": lambda r: r["rule"],
            **{
                f"{what} after {positions:,} positions": _error(field, positions)
                for what, field in (("outputs", "out"), ("W", "W"))
                for positions in (1000, 100_000, 1_000_000)
            },
        },
        key=lambda r: (("sum", "delta", "gated").index(r["rule"]),) if r["dtype"] == "float32" else None,
        note=conditions,
    ),
}
