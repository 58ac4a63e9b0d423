"""Lets --retain-dropout-modules (dropout that stays on while decoding) name fairseq's classes as well as ours."""

import re
from collections.abc import Iterable

from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import nn

_THEIRS = {
    "FwpEncoder": "TransformerEncoder",
    "FwpEncoderLayer": "TransformerEncoderLayer",
    "FwpDecoder": "TransformerDecoder",
    "FwpLanguageModelDecoder": "TransformerDecoder",
    "FwpDecoderLayer": "TransformerDecoderLayer",
    "SiteAttention": "MultiheadAttention",
}


def _names(module_name: str) -> set[str]:
    """The names that a user may give for this class; fairseq has each of its classes with and without "Base"."""
    theirs = _THEIRS.get(module_name)
    return {module_name} | ({theirs, f"{theirs}Base"} if theirs else set())


def _resolve(model: nn.Module, asked: str | Iterable[str]) -> list[str]:
    """Translates the names in ``asked`` into those by which the dropouts of ``model`` know their modules.

    ``asked`` may be one text with the names separated in any way, because fairseq does not split it. Raises ValueError
    for a name that no dropout of the model has, since that dropout would silently stay off.
    """
    wanted = set(re.findall(r"\w+", asked) if isinstance(asked, str) else asked)
    known = {
        module.module_name: _names(module.module_name)
        for module in model.modules()
        if isinstance(module, FairseqDropout) and module.module_name
    }
    unknown = wanted.difference(*known.values())
    if unknown:
        raise ValueError(
            f"--retain-dropout-modules {','.join(sorted(unknown))}: no dropout of this model has that name; "
            f"expected some of {', '.join(sorted(set().union(*known.values())))}"
        )
    return [name for name, names in known.items() if names & wanted]


class RetainsDropout:
    """A mixin of the models; it comes before fairseq's class among their bases."""

    def make_generation_fast_(self, **kwargs) -> None:
        if kwargs.get("retain_dropout_modules"):
            kwargs["retain_dropout_modules"] = _resolve(self, kwargs["retain_dropout_modules"])
        super().make_generation_fast_(**kwargs)
