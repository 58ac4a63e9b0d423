"""Small models of English-German, trained from the beginning: the ones from which conversions begin, and a hybrid."""

from scripts.translation.experiment import Translation

from .rows import QUICKSTART, SMOKE


class Quickstart(Translation):
    name, file, presets = "quickstart", "quickstart.jsonl", {preset.name: preset for preset in (QUICKSTART, SMOKE)}
    description = """\
Trains, decodes, scores and records small English-German models on Multi30k: `baseline` has softmax attention, and is
what the experiment conversion converts; `hybrid` has fast weights.

  --preset quickstart --rows baseline --seeds 1 2 3
"""


EXPERIMENT = Quickstart()
