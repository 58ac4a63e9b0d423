"""The tables of scripts/reproduce/finetune_softmax_to_fast_weights."""

from fwp_fairseq.tables.table import Table, number, over_seeds

from .cells import machine, seeds, signatures, spread_note

_MEANS = ("train_seconds", "bleu", "sentences_per_second", "peak_mib", "long_tokens_per_second", "long_peak_mib")
_TITLES = {
    "softmax": "softmax, as trained",
    "converted": "converted",
    "transferred": "feature maps trained",
    "finetuned": "fine-tuned",
    "continued": "softmax, trained on",
}


def _attention(record: dict) -> str:
    """Returns the attention of a record, without naming the sites if all three have the same."""
    sites = [text.partition(": ") for text in record["attention"].split("; ")]
    return sites[0][2] if len({choices for *_, choices in sites}) == 1 and sites[0][2] else record["attention"]


def _title(record: dict) -> str:
    """Returns the stage of a record, and whether it comes after an attention transfer, which early records had not."""
    title, updates = _TITLES[record["stage"]], record.get("transfer")
    return f"{title}, after {updates} of feature maps" if updates and record["stage"] == "finetuned" else title


def _note(rows: list[dict]) -> str:
    lines = [signatures(rows), *spread_note(rows)] if rows else []
    lines += dict.fromkeys(
        f"long: one batch of 10 sentences, each translation of exactly {row['long_length']:,} tokens" for row in rows
    )
    return "\n\n".join([*lines, *dict.fromkeys(f"machine: {machine(row)}, {row['threads']} threads" for row in rows)])


TABLES = {
    name: Table(
        columns={
            "model": _title,
            "attention": _attention,
            "updates": number("updates", ","),
            "training, seconds": number("train_seconds", ".0f"),
            "BLEU": number("bleu", ".2f"),
            "test set, sentences/s": number("sentences_per_second", ".1f"),
            "test set, peak MiB": number("peak_mib", ",.0f"),
            "long, tokens/s": number("long_tokens_per_second", ",.0f"),
            "long, peak MiB": number("long_peak_mib", ",.0f"),
            "seeds": seeds,
        },
        key=lambda r: (r["conversion"], r.get("transfer", 0), [*_TITLES].index(r["stage"]), r["updates"]),
        combine=over_seeds(*_MEANS),
        note=_note,
    )
    # The conversion of other checkpoints, and of the quickstart's.
    for name in ("finetune", "quickstart-converted")
}
