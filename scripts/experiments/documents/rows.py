"""The rows of the experiment, the most informative ones first: which attention each site has, and what else differs."""

from dataclasses import replace

from fwp_fairseq.kinds import HYBRID
from fwp_fairseq.options import TRANSLATION_SITES
from scripts.common.row import Row

ROTARY = "softmax-rotary"
_NO_SINUSOIDS = {"--no-token-positional-embeddings": True}
BOTH_WAYS, NO_NORM, CONVOLUTIONS = ",passes=both-ways", ",output-norm=none", ",conv-size=4"


def _row(name: str, *kinds: str) -> Row:
    """Returns the row with these kinds of attention in the encoder, the decoder and cross-attention, in this order."""
    return Row(name, dict(zip(TRANSLATION_SITES, kinds, strict=True)))


def _softmax(name: str, **more) -> Row:
    flags = {f"--{flag.replace('_', '-')}": value for flag, value in more.items()}
    return Row(name, dict.fromkeys(TRANSLATION_SITES, "softmax"), flags)


_BASELINE = _softmax("softmax")
_HYBRID = Row("hybrid", HYBRID)
_GATED = _row("hybrid-gated", "gated-delta" + BOTH_WAYS, "gated-delta", "softmax")
_ROTARY = _row("softmax-rotary", ROTARY, ROTARY, "softmax")
# The attention that knows distances, with rotary positions in cross-attention too, and with convolutions as well.
_ROTARY_CROSS = (
    _row("softmax-rotary-rotary-cross", ROTARY, ROTARY, ROTARY),
    _row("hybrid-gated-rotary-cross", "gated-delta" + BOTH_WAYS, "gated-delta", ROTARY),
)
_CROSS_CONV = tuple(
    _row(f"{row.name}-conv", row.kinds["encoder"] + CONVOLUTIONS, row.kinds["decoder"] + CONVOLUTIONS, ROTARY)
    for row in _ROTARY_CROSS
)


_WIDER_BETA = _row(
    f"{_CROSS_CONV[1].name}-beta-0-2",
    *(_CROSS_CONV[1].kinds[site] + ",beta-range=0-2" for site in ("encoder", "decoder")),
    ROTARY,
)


def _with(name: str, flags: dict, rows: tuple[Row, ...] = (_BASELINE, _HYBRID, _GATED, _ROTARY)) -> tuple[Row, ...]:
    """Returns the main rows, or these, with flags in place of those that all rows share (presets.py)."""
    return tuple(replace(row, name=f"{row.name}-{name}", more=row.more | flags) for row in rows)


ROWS = (
    _BASELINE,
    _HYBRID,
    _GATED,
    _row("dpfp", "dpfp,d-dot=256", "dpfp,d-dot=256", "dpfp,d-dot=256"),
    _row("delta", "delta" + BOTH_WAYS, "delta", "delta"),
    _row("elu", "elu", "elu", "elu"),
    _row("encoder-alone", "delta" + BOTH_WAYS, "softmax", "softmax"),
    _row("decoder-alone", "softmax", "delta", "softmax"),
    _row("one-direction", "delta", "delta", "softmax"),
    _row("no-output-norm", "delta" + NO_NORM + BOTH_WAYS, "delta" + NO_NORM, "softmax"),
    # What may help softmax attention with long inputs.
    _softmax("softmax-learned-positions", encoder_learned_pos=True, decoder_learned_pos=True),
    _softmax("softmax-no-positions", no_token_positional_embeddings=True),
    _ROTARY,
    *_ROTARY_CROSS,
    *_CROSS_CONV,
    *_with("lr-1.5e-3", {"--lr": "1.5e-3"}),
    *_with("lr-6e-3", {"--lr": "6e-3"}),
    *_with("lr-6e-3", {"--lr": "6e-3"}, _ROTARY_CROSS + _CROSS_CONV),
    # What else may help fast weights, with what helps the most: positions known by recurrence and rotation alone, heads
    # of 128 where they all read in one direction, and writes that turn an old value's sign.
    *_with("lr-6e-3-no-sinusoids", {"--lr": "6e-3"} | _NO_SINUSOIDS, _CROSS_CONV),
    *_with("lr-6e-3-wide-heads", {"--lr": "6e-3", "--decoder-attention-heads": 1}, _CROSS_CONV),
    *_with("lr-6e-3", {"--lr": "6e-3"}, (_WIDER_BETA,)),
    # The controls of candidates that add parameters (below): as many, in the feed-forward layers.
    *_with(
        "lr-6e-3-wide-ffn",
        {"--lr": "6e-3", "--encoder-ffn-embed-dim": 320, "--decoder-ffn-embed-dim": 320},
        _CROSS_CONV,
    ),
    # 250 of the 3,000 updates of `short` are about the share that the usual 1,000 are of the 15,000 of `long`.
    *_with("warmup-250", {"--warmup-updates": 250}),
)
# As many tokens as in 3,000 updates, in smaller and in larger batches.
BATCHES = tuple(
    _softmax(
        f"softmax-{tokens}-tokens",
        max_tokens=tokens, max_update=updates, total_num_update=updates, warmup_updates=updates // 3,
    )
    for tokens, updates in ((1250, 6000), (5000, 1500))
)  # fmt: skip


def _candidate(name: str, rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Returns rows of small models whose attention has this candidate (fwp_candidates/model.py)."""
    flags = {"--user-dir": "scripts/experiments/documents/fwp_candidates", "--arch": "candidate_transformer_tiny"}
    return _with(f"{name}-lr-6e-3", flags | {"--candidates": name, "--lr": "6e-3"}, rows)


CANDIDATES = (
    _candidate("kda", _CROSS_CONV[1:]) + _candidate("output-gate", _CROSS_CONV) + _candidate("clock", _CROSS_CONV)
)
_DROPOUT = {"--dropout": 0.0}
NO_DROPOUT = (
    _with("no-dropout", _DROPOUT)
    + _with("no-dropout", _DROPOUT, _ROTARY_CROSS + _CROSS_CONV)
    + _with("no-dropout-no-sinusoids", _DROPOUT | _NO_SINUSOIDS, _CROSS_CONV)
)
# Other settings in whole trainings, which the figure leaves out.
OTHER_SETTINGS = _with("no-dropout-lr-6e-3", _DROPOUT | {"--lr": "6e-3"})
