"""--retain-dropout-modules takes names of classes, separated by commas, and refuses one that no module has.

fairseq keeps the flag as one text, and searches it for the name of each module.
"""

import re

from fairseq.models import BaseFairseqModel
from fairseq.modules import FairseqDropout

from . import around


@around(BaseFairseqModel, "make_generation_fast_", ours=True)
def keep_the_named(make_generation_fast_, self, **kwargs):
    modules = kwargs.get("retain_dropout_modules")
    if modules is not None:
        names = re.findall(r"\w+", modules) if isinstance(modules, str) else list(modules)
        known = {part.module_name for part in self.modules() if isinstance(part, FairseqDropout)} - {None}
        if unknown := set(names) - known:
            raise ValueError(
                f"--retain-dropout-modules {','.join(names)}: no module with dropout is of the class "
                f"{min(unknown)}; expected some of {', '.join(sorted(known))}"
            )
        kwargs["retain_dropout_modules"] = names
    return make_generation_fast_(self, **kwargs)
