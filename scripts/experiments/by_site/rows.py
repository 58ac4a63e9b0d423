"""The rows of the table of BLEU by site: which kind of attention the encoder, the decoder and cross-attention have."""

from itertools import product

from fwp_fairseq.cli.recipe import NO_SINUSOIDS
from fwp_fairseq.kinds import HYBRID, PASSAGES
from fwp_fairseq.options import TRANSLATION_SITES
from scripts.common.renamed import row_name
from scripts.common.row import Row

# The learning rate of the preset `sites`.
LR = 3e-3

DPFP, FAVOR = "dpfp,d-dot=256", "favor,d-dot=256,qk-norm=l2"
BOTH_WAYS = ",passes=both-ways"
DPFP_DELTA, FAVOR_FIXED = f"{DPFP},update-rule=delta", f"{FAVOR},directions=fixed"


def _row(*kinds: str, heads: int = 2, dropout: float = 0.1, sinusoids: bool = True) -> Row:
    """Returns the row with these kinds of attention in the encoder, the decoder and cross-attention, in this order."""
    others = [f"{heads}-heads"] * (heads != 2) + ["no-dropout"] * (not dropout) + ["no-sinusoids"] * (not sinusoids)
    sites = dict(zip(TRANSLATION_SITES, kinds, strict=True))
    more = {"--dropout": dropout} | {f"--{part}-attention-heads": heads for part in ("encoder", "decoder")}
    more |= {} if sinusoids else {NO_SINUSOIDS: True}
    # The fields of one attention are empty.
    fields = dict.fromkeys(("feature_map", "update_rule", "normalizer", "d_dot"))
    return Row(row_name(kinds, *others), sites, more, fields | {"kinds": sites, "heads": heads})


def replaced(row: Row) -> tuple[str, ...]:
    """Returns the sites that do not have softmax attention."""
    return tuple(site for site, kind in row.kinds.items() if kind != "softmax")


def _everywhere(kind: str, **more) -> Row:
    return _row(*[kind] * 3, **more)


def _family(*kinds: str) -> tuple[Row, ...]:
    """Returns rows with these kinds at every set of sites, and softmax attention at the others."""
    *rows, _ = (_row(*row) for row in product(*((kind, "softmax") for kind in kinds)))
    return tuple(sorted(rows, key=lambda row: len(replaced(row)), reverse=True))


# What is tried at every set of sites: name to its rows.
FAMILIES = {"dpfp": _family(DPFP, DPFP, DPFP), "delta": _family("delta" + BOTH_WAYS, "delta", "delta")}

ROWS = (
    _everywhere("softmax"),
    *(row for family in FAMILIES.values() for row in family),
    _row("softmax", "hedgehog-window", "softmax"),
    _row("softmax", DPFP_DELTA, "softmax"),
    _row("softmax", f"delta,feature-map={DPFP}", "softmax"),
    _row("softmax", f"{DPFP},update-rule=gated_delta,normalizer=sum", "softmax"),
    _row(DPFP_DELTA + BOTH_WAYS, "softmax", "softmax"),
    _row("gated-delta" + BOTH_WAYS, "gated-delta", "softmax"),
    _everywhere("hedgehog"),
    _everywhere("t2r,d-dot=128"),
    _everywhere(FAVOR),
    _everywhere(FAVOR_FIXED),
    _everywhere("favor,d-dot=256,directions=fixed"),
    _everywhere(FAVOR_FIXED, heads=8),
    _everywhere(DPFP, heads=8),
    _everywhere("softmax", dropout=0.0),
    _row("softmax-rotary", "softmax-rotary", "softmax", dropout=0.0),
    _row(*HYBRID.values(), dropout=0.0),
    # The best models of the experiment on documents.
    _row("softmax-rotary,conv-size=4", "softmax-rotary,conv-size=4", "softmax-rotary", dropout=0.0),
    _row(*PASSAGES.values(), dropout=0.0, sinusoids=False),
)

# What is tried from German into English.
DE_EN_ROWS = (_everywhere("softmax"), _row(*HYBRID.values()), _row("delta" + BOTH_WAYS, "delta", "delta"))
