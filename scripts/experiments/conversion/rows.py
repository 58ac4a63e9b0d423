"""The conversions of a trained softmax model, and the models that they begin with."""

from dataclasses import dataclass, field, replace

from fwp_fairseq.options import TRANSLATION_SITES
from scripts.common.row import Row
from scripts.common.runner.preset import Preset
from scripts.translation.preset import TINY

LR = 1e-3  # of fine-tuning
# Losses are logged as means over few updates, because single ones vary more than a short training gains.
SHORT = {"--warmup-updates": 40, "--log-interval": 10}
HEDGEHOG = "hedgehog,d-dot=128"


@dataclass(frozen=True)
class ConversionRow(Row):
    """One conversion: the attention, and the training after it.

    - `transfer`: updates that train only the feature maps before, if they can be trained.
    - `updates`: updates of fine-tuning; None for those of the preset.
    - `control`: whether the model as it was is trained on too, for as many updates in all.
    """

    transfer: int = 0
    updates: int | None = None
    control: bool = False


def _at(*sites: str, kind: str = HEDGEHOG) -> dict[str, str]:
    """This kind at some sites, and softmax attention at the others."""
    return {site: kind if site in sites else "softmax" for site in TRANSLATION_SITES}


WINDOW = ConversionRow("window", _at("decoder", kind=f"{HEDGEHOG},window=8"), control=True)
ROWS = (
    # What scripts/quickstart.sh converts to: the one site whose cost grows with the output.
    WINDOW,
    ConversionRow("decoder", _at("decoder"), transfer=150),
    ConversionRow("decoder-and-encoder", _at("encoder", "decoder"), transfer=150),
    ConversionRow("decoder-and-cross", _at("decoder", "cross"), transfer=150),
    ConversionRow("hedgehog", _at(*TRANSLATION_SITES), transfer=150, control=True),
    ConversionRow("dpfp", _at(*TRANSLATION_SITES, kind="dpfp,d-dot=256"), updates=400),
)
# Without a training of the maps, for as many updates of the preset `multi30k` in all.
AT_ONCE = (
    ConversionRow("decoder-at-once", _at("decoder"), updates=410),
    ConversionRow("at-once", _at(*TRANSLATION_SITES), updates=410),
)


@dataclass(frozen=True, kw_only=True)
class ConversionPreset(Preset):
    """The model that is converted.

    - `model`: its checkpoint; {seed} stands for the seed.
    - `made_by`: the command that makes it.
    - `updates`: of fine-tuning.
    - `training`: its settings, without learning rate and updates.
    - `long`: the length to which outputs are forced, at which a state of constant size should be an advantage.
    - `table`: what its records are of.
    """

    model: str
    made_by: str
    updates: int
    table: str
    training: dict = field(default_factory=lambda: TINY.training | SHORT)
    long: int = 1000
    smoke: bool = False
    rows: tuple[ConversionRow, ...] = ROWS


QUICKSTART = ConversionPreset(
    name="quickstart",
    model="runs/quickstart/quickstart/baseline-seed{seed}/checkpoints/average.pt",
    made_by="python -m scripts.experiments quickstart --preset quickstart --rows baseline --seeds {seed}",
    updates=400,  # a fifth of the first training
    table="quickstart-converted",
)
MULTI30K = ConversionPreset(
    name="multi30k",
    model="runs/bleu_vs_d_dot/multi30k/softmax-seed{seed}/checkpoints/average.pt",
    made_by="python -m scripts.experiments bleu_vs_d_dot --preset multi30k --rows softmax --seeds {seed}",
    updates=260,  # a fifth of the first training
    table="finetune",
    rows=(*ROWS, *AT_ONCE),
)
SMOKE = replace(
    QUICKSTART,
    name="smoke",
    model="runs/quickstart/smoke/baseline-seed{seed}/checkpoints/average.pt",
    made_by="python -m scripts.experiments quickstart --preset smoke --rows baseline --seeds {seed}",
    updates=30,
    training=QUICKSTART.training | {"--max-tokens": 1000, "--warmup-updates": 5, "--disable-validation": True},
    long=30,
    smoke=True,
    rows=tuple(replace(row, transfer=min(row.transfer, 30), updates=None) for row in (*ROWS, *AT_ONCE)),
)
PRESETS = {preset.name: preset for preset in (QUICKSTART, MULTI30K, SMOKE)}
