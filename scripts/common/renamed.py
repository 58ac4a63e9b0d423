"""Gives earlier records the names of attention of ``fwp_fairseq/kinds.py``; their files stay as they were written."""

import re
from collections.abc import Collection

# Old name of the attention of a site to its kind, in BLEU by site.
_SITE = {
    "softmax": "softmax",
    "rotary": "softmax-rotary",
    "dpfp": "dpfp,d-dot=256",
    "delta": "dpfp,d-dot=256,update-rule=delta",
    "hedgehog": "hedgehog",
    "t2r": "t2r,d-dot=128",
    "window": "hedgehog-window",
    "favor": "favor,d-dot=256,qk-norm=l2",
    "favor-fixed": "favor,d-dot=256,qk-norm=l2,directions=fixed",
    "favor-any-length": "favor,d-dot=256,directions=fixed",
    "delta-rms": "delta,feature-map=dpfp,d-dot=256",
    "delta-both-ways": "dpfp,d-dot=256,update-rule=delta,passes=both-ways",
    "delta-elu": "delta",
    "delta-elu-both-ways": "delta,passes=both-ways",
    "gated-delta-elu": "gated-delta",
    "gated-delta-elu-both-ways": "gated-delta,passes=both-ways",
    "gated-delta": "dpfp,d-dot=256,update-rule=gated_delta,normalizer=sum",
}
_ROW_BY_SITE = re.compile("-".join([f"({'|'.join(sorted(_SITE, key=len, reverse=True))})"] * 3) + "((?:-.*)?)")
_STATE_TRACKING = {
    "sum": "elu",
    "delta": "elu,update-rule=delta",
    "fwp1991": "fwp1991,feature-map=identity",
    "mlp": "delta-mlp",
    "rnn-elu": "delta-rnn",
    "lstm": "delta-lstm",
    "recurrent-elu": "recurrent-delta",
    "rnn-recurrent-elu": "delta-rnn,recurrent=tanh",
}
_BETA_RANGE = re.compile("(delta|gated_delta)-(elu|dpfp)-(sum|l2)-(0-[12])")
_RECURRENT = {
    "delta rule": "elu,update-rule=delta",
    "Delta RNN": "delta-rnn",
    "Recurrent Delta Net": "recurrent-delta",
    "Delta LSTM": "delta-lstm",
    "Delta MLP": "delta-mlp",
    "Delta-Delta Net": "delta-delta",
}
_SYNTHETIC = re.compile("(elu|dpfp|favor)([0-9]*)-(sum|delta|gated)")
_D_KEY = 64  # of the synthetic task


def row_name(kinds: Collection[str], *others: str) -> str:
    """Returns the name of a row: the kind of each site, or the one kind that they all have, and what else differs."""
    return "_".join([*(kinds if len({*kinds}) > 1 else {*kinds}), *others])


def _kind(record: dict) -> str:
    """Returns the kind of a model that has one attention at all sites."""
    if record["feature_map"] == "softmax":
        return "softmax"
    width = "" if record["feature_map"] == "elu" else f",d-dot={record['d_dot']}"
    rule = "" if record["update_rule"] == "sum" else f",update-rule={record['update_rule']}"
    normalizer = ",normalizer=both" if record["normalizer"] == "both" else ""
    return record["feature_map"] + width + rule + normalizer


def _by_site(name: str) -> str:
    """Returns the name of a row of BLEU by site."""
    match = _ROW_BY_SITE.fullmatch(name)
    if match is None:
        return name
    *sites, others = match.groups()
    heads = ["8-heads"] * ("-8-heads" in others) + ["no-dropout"] * ("-no-dropout" in others)
    return row_name([_SITE[site] for site in sites], *heads)


def _kinds_of_sites(record: dict) -> dict:
    kinds = record.get("kinds") or {site: _SITE[name] for site, name in record["sites"].items()}
    return {"kinds": kinds, "row": _by_site(record["row"])}


def _language_model(record: dict) -> dict:
    name = record["row"]
    if name.startswith("transformer-xl") or not name.endswith(("-small", "-medium")):
        return {}
    others = ["no-positions"] * (not record["positions"]) + ["carried"] * (record["state"] == "carried")
    return {"row": "_".join([_kind(record), name.rpartition("-")[2], *others])}


def _parity(record: dict) -> dict:
    name = record["model"]
    if match := _BETA_RANGE.fullmatch(name):
        rule, feature_map, normalizer, beta = match.groups()
        return {"model": f"{feature_map},update-rule={rule},normalizer={normalizer},beta-range={beta}"}
    return {"model": _STATE_TRACKING.get(name, name)}


def _synthetic(record: dict) -> dict:
    match = _SYNTHETIC.fullmatch(record["model"])
    if match is None:
        return {}
    feature_map, parameter, rule = match.groups()
    width = f",d-dot={2 * int(parameter) * (_D_KEY if feature_map == 'dpfp' else 1)}" if parameter else ""
    return {"model": feature_map + width + ("" if rule == "sum" else f",update-rule={rule}")}


def _recurrent(record: dict) -> dict:
    groups = {name: record[name] for name in ("ratios", "seconds", "clocks")}
    return {name: {_RECURRENT.get(net, net): x for net, x in values.items()} for name, values in groups.items()}


_TABLES = {
    "bleu_vs_d_dot": lambda record: {} if record["feature_map"] == "hybrid" else {"row": _kind(record)},
    "bleu_by_site": _kinds_of_sites,
    "bleu_of_de_en": _kinds_of_sites,
    "paired_bootstrap": lambda record: {name: _by_site(record[name]) for name in ("row", "baseline")},
    "language_models": _language_model,
    "parity": _parity,
    "synthetic": _synthetic,
    "recurrent": _recurrent,
}


def renamed(record: dict) -> dict:
    """Returns a record with the names of today. Raises KeyError if it lacks a field of its table."""
    return record | _TABLES.get(record.get("table"), lambda record: {})(record)
