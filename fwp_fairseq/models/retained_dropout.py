"""--retain-dropout-modules: the dropouts that stay on while decoding, by fairseq's class names as well as by ours."""

import re
from collections.abc import Iterable

from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import nn

_THEIRS = {
    "FwpEncoder": "TransformerEncoder",
    "FwpEncoderLayer": "TransformerEncoderLayer",
    "FwpDecoder": "TransformerDecoder",
    "FwpDecoderLayer": "TransformerDecoderLayer",
    "FastWeightAttention": "MultiheadAttention",
}


def _names(module_name: str) -> set[str]:
    """What a user may call the class of this name; fairseq has each with and without "Base"."""
    theirs = _THEIRS.get(module_name)
    return {module_name} | ({theirs, f"{theirs}Base"} if theirs else set())


def _resolve(model: nn.Module, asked: str | Iterable[str]) -> list[str]:
    """The names under which the dropouts of ``model`` know the modules asked for.

    fairseq leaves what the command line says in one text, whichever way its names are separated.
    ValueError for a name that no dropout of the model answers to: it would be off without a word.
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
    """Mixed into the models, before fairseq's class."""

    def make_generation_fast_(self, **kwargs) -> None:
        if kwargs.get("retain_dropout_modules"):
            kwargs["retain_dropout_modules"] = _resolve(self, kwargs["retain_dropout_modules"])
        super().make_generation_fast_(**kwargs)
