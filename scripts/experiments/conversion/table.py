"""The tables of conversions of trained models."""

from collections import defaultdict

from fwp_fairseq.tables.table import NONE, Table, number, over_seeds
from scripts.common.cells import machine, seeds, signature_notes, signatures, spread_note

_MEANS = ("train_seconds", "bleu", "sentences_per_second", "peak_mib", "long_tokens_per_second", "long_peak_mib")
_TITLES = {
    "softmax": "softmax, as trained",
    "converted": "converted",
    "transferred": "feature maps trained",
    "finetuned": "fine-tuned",
    "continued": "softmax, trained on",
}
_LR = 1e-3  # of early records, which do not name it
_USUAL = ("update-rule=sum", "normalizer=attention")


def _attention(described: str) -> str:
    """Returns what is not usual at the sites of a record's attention, and which sites have it."""
    sites: dict[str, list[str]] = {}
    for text in described.split("; "):
        site, _, choices = text.partition(": ")
        words = [word for word in choices.split() if word not in _USUAL]
        name = ", ".join(words).replace("feature-map=", "").replace("d-dot=", "d_dot ").replace("=", " ")
        sites.setdefault(name, []).append(site)
    return "; ".join(
        f"{name}: {'all sites' if len(where) == 3 else ', '.join(where)}" if name else where[0]
        for name, where in sites.items()
    )


def _lr(record: dict) -> float:
    return record.get("lr", _LR)


def _key(record: dict) -> tuple:
    """Returns what a conversion is known by."""
    return record["conversion"], record.get("transfer", 0), _lr(record)


def _title(record: dict) -> str:
    """Returns the stage of a record, and what is not usual about its training."""
    title = _TITLES[record["stage"]]
    if record["stage"] == "finetuned" and record.get("transfer"):
        title += f", after {record['transfer']} of feature maps"
    if record["stage"] in ("finetuned", "continued") and _lr(record) != _LR:
        title += f", learning rate {_lr(record):g}"
    return title


def _note(rows: list[dict]) -> str:
    lines = [signatures(rows), *spread_note(rows)] if rows else []
    lines += dict.fromkeys(
        f"long: one batch of 10 sentences, each translation of exactly {row['long_length']:,} tokens" for row in rows
    )
    return "\n\n".join([*lines, *dict.fromkeys(f"machine: {machine(row)}, {row['threads']} threads" for row in rows)])


def _stages(records: list[dict]) -> dict:
    """Combines the records of a conversion: the BLEU of each stage, a mean over its seeds."""
    row = {"transfer": 0, **records[-1], "spread": {}} | dict.fromkeys(_TITLES)
    by_stage = defaultdict(list)
    for record in records:
        by_stage[record["stage"]].append(record)
    row["updates"] = next((record["updates"] for record in records if record["stage"] == "finetuned"), None)
    for stage in sorted(by_stage, key=[*_TITLES].index):
        mean = over_seeds("bleu")(by_stage[stage])
        row |= {stage: mean["bleu"]}
        if stage != "continued" or "finetuned" not in by_stage:
            row["seeds"] = mean["seeds"]
        row["spread"] |= {stage: mean["spread"].get("bleu")}
    return row


TABLES = {
    "quickstart-conversions": Table(
        columns={
            "model": _title,
            "attention": lambda r: _attention(r["attention"]),
            "updates": number("updates", ","),
            "training, seconds": lambda r: number("train_seconds", ".0f")(r) if r["updates"] else NONE,
            "BLEU": number("bleu", ".2f"),
            "test set, sentences/s": number("sentences_per_second", ".1f"),
            "test set, peak MiB": number("peak_mib", ",.0f"),
            "long, tokens/s": number("long_tokens_per_second", ",.0f"),
            "long, peak MiB": number("long_peak_mib", ",.0f"),
            "seeds": seeds,
        },
        key=lambda r: (*_key(r), [*_TITLES].index(r["stage"])),
        combine=over_seeds(*_MEANS),
        note=_note,
        select={"table": "quickstart-converted"},
    ),
    # A row for each conversion of other checkpoints.
    "finetune-by-site": Table(
        columns={
            "attention": lambda r: _attention(r["conversion"]),
            "updates of the maps": number("transfer", ","),
            "of everything": number("updates", ","),
            "learning rate then": lambda r: f"{_lr(r):g}",
            "before": number("softmax", ".2f"),
            "converted": number("converted", ".2f"),
            "maps trained": number("transferred", ".2f"),
            "then everything": number("finetuned", ".2f"),
            "not converted, trained on": number("continued", ".2f"),
            "seeds": seeds,
        },
        key=lambda r: (r["conversion"].count(": "), *_key(r)),
        combine=_stages,
        note=lambda rows: "\n\n".join([*signature_notes(rows), *spread_note(rows)]),
        select={"table": "finetune"},
    ),
}
