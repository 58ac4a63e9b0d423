"""A row of a table of trained models."""

from dataclasses import dataclass, field

from fwp_fairseq.kinds import Attention
from fwp_fairseq.options import TRANSLATION_SITES

from .commands import site_flags
from .renamed import row_name


@dataclass(frozen=True)
class Row:
    """One model.

    - `kinds`: the attention of each site, as flags write it: `KIND,OPTION=VALUE`.
    - `more`: other flags of fairseq-train.
    - `recorded`: the fields of its records beside its name.
    """

    name: str
    kinds: dict[str, str]
    more: dict = field(default_factory=dict)
    recorded: dict = field(default_factory=dict)

    @property
    def flags(self) -> dict:
        """The flags of fairseq-train for this model."""
        return site_flags(self.kinds) | self.more


def attention_fields(kind: str, d_key: int) -> dict:
    """Returns the fields of a record for one kind of attention with heads of this width."""
    options = Attention.parse(kind).options()
    fields = ("update_rule", "normalizer", "d_dot")
    values = (None,) * 3
    if not options.is_softmax:
        values = options.update_rule, options.chosen_normalizer, options.width(d_key)
    return {"feature_map": options.feature_map} | dict(zip(fields, values, strict=True))


def everywhere(kind: str, d_key: int) -> Row:
    """Returns the row with one kind of attention at all sites."""
    kinds = dict.fromkeys(TRANSLATION_SITES, kind)
    return Row(row_name(kinds.values()), kinds, recorded=attention_fields(kind, d_key))
