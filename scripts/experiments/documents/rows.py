"""The rows of the experiment, the most informative ones first: which attention each site has, and what else differs."""

from dataclasses import dataclass, field, replace

from scripts.common.commands import site_flags

ROTARY = "softmax-rotary"
BOTH_WAYS, NO_NORM, CONVOLUTIONS = ",passes=both-ways", ",output-norm=none", ",conv-size=4"


@dataclass(frozen=True)
class Row:
    """The kinds of attention of the encoder, of the decoder and from the one to the other.

    `more` are other flags of fairseq-train.
    """

    name: str
    encoder: str
    decoder: str
    cross: str
    more: dict = field(default_factory=dict)

    @property
    def flags(self) -> dict:
        """The flags of fairseq-train for this model."""
        sites = {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}
        return site_flags(sites) | self.more


def _softmax(name: str, **more) -> Row:
    return Row(
        name, "softmax", "softmax", "softmax", {f"--{flag.replace('_', '-')}": value for flag, value in more.items()}
    )


_BASELINE = _softmax("softmax")
_HYBRID = Row("hybrid", "delta" + BOTH_WAYS, "delta", "softmax")
_GATED = Row("hybrid-gated", "gated-delta" + BOTH_WAYS, "gated-delta", "softmax")
_ROTARY = Row("softmax-rotary", ROTARY, ROTARY, "softmax")
# The attention that knows distances, with rotary positions in cross-attention too, and with convolutions as well.
_ROTARY_CROSS = tuple(replace(row, name=f"{row.name}-rotary-cross", cross=ROTARY) for row in (_ROTARY, _GATED))
_BOTH = tuple(
    replace(row, name=f"{row.name}-conv", encoder=row.encoder + CONVOLUTIONS, decoder=row.decoder + CONVOLUTIONS)
    for row in _ROTARY_CROSS
)


def _with(name: str, flags: dict, rows: tuple[Row, ...] = (_BASELINE, _HYBRID, _GATED, _ROTARY)) -> tuple[Row, ...]:
    """The main rows, or these, with flags in place of those that all rows share (presets.py)."""
    return tuple(replace(row, name=f"{row.name}-{name}", more=row.more | flags) for row in rows)


ROWS = (
    _BASELINE,
    _HYBRID,
    _GATED,
    Row("dpfp", "dpfp,d-dot=256", "dpfp,d-dot=256", "dpfp,d-dot=256"),
    Row("delta", "delta" + BOTH_WAYS, "delta", "delta"),
    Row("elu", "elu", "elu", "elu"),
    Row("encoder-alone", "delta" + BOTH_WAYS, "softmax", "softmax"),
    Row("decoder-alone", "softmax", "delta", "softmax"),
    Row("one-direction", "delta", "delta", "softmax"),
    Row("no-output-norm", "delta" + NO_NORM + BOTH_WAYS, "delta" + NO_NORM, "softmax"),
    # What may help softmax attention with long inputs.
    _softmax("softmax-learned-positions", encoder_learned_pos=True, decoder_learned_pos=True),
    _softmax("softmax-no-positions", no_token_positional_embeddings=True),
    _ROTARY,
    *_with("lr-1.5e-3", {"--lr": "1.5e-3"}),
    *_with("lr-6e-3", {"--lr": "6e-3"}),
    *_with("lr-6e-3", {"--lr": "6e-3"}, _ROTARY_CROSS + _BOTH),
    # In the preset `short` about the share of the updates that the warm-up has in `long`.
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
_DROPOUT = {"--dropout": 0.0}
NO_DROPOUT = _with("no-dropout", _DROPOUT)
# Other settings in whole trainings, which the figure leaves out.
TRIED = _with("no-dropout-lr-6e-3", _DROPOUT | {"--lr": "6e-3"})
