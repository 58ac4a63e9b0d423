"""The rows of the tables of BLEU over d_dot, which are trained in this order, the most informative ones first."""

from fwp_fairseq.kinds import HYBRID
from scripts.common.row import Row, everywhere

D_KEY = 64  # so that nu and m are those of Table 6 of Schlag et al. 2021
# The sum rule has attention normalisation (Sections 3.2 and 5), and the features of the delta rule are divided by their
# sum (Section 4.2). The paper has no translation results for the delta rule.
KINDS = (
    "softmax",
    "elu",
    "dpfp,d-dot=256",
    "favor,d-dot=256",
    "dpfp,d-dot=256,update-rule=delta",
    "dpfp,d-dot=512",
    "favor,d-dot=64",
    "favor,d-dot=512",
    "dpfp,d-dot=384",
    "favor,d-dot=384",
    "elu,update-rule=delta",
    "dpfp,d-dot=512,update-rule=delta",
)
ROWS = tuple(everywhere(kind, D_KEY) for kind in KINDS)
BY_NAME = {row.name: row for row in ROWS}


def _hybrid(name: str, kinds: dict[str, str], rule: str) -> Row:
    fields = {"feature_map": "hybrid", "update_rule": rule, "normalizer": None, "d_dot": None}
    return Row(name, kinds, recorded=fields)


_GATED = {site: kind.replace("delta", "gated-delta") for site, kind in HYBRID.items()}
# The attention of the architectures ``..._hybrid``, also with decay; the paper has none of them.
WITH_HYBRIDS = (ROWS[0], _hybrid("hybrid", HYBRID, "delta"), _hybrid("hybrid-gated", _GATED, "gated_delta"), *ROWS[1:])
