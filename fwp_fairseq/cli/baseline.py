"""The softmax Transformer that ``fwp train --baseline`` trains beside a model, and what the comparison says."""

from pathlib import Path

from ..checkpoint_content import section
from ..kinds import Attention
from ..options import OPTIONS
from ..text import printable
from .errors import UsageError

_ROTARY = "softmax-rotary"
BASELINES = ("softmax", _ROTARY)


def folder_in(out: Path) -> Path:
    return out / "baseline"


def _rotary(text: str) -> str:
    """Returns softmax attention with rotary positions, and with those options of an attention that it can have."""
    changes = Attention.parse(text).changes
    return str(Attention(_ROTARY, {name: value for name, value in changes.items() if OPTIONS[name].of_softmax}))


def model_flags(baseline: str, arch: str, attention: dict[str, str] | None = None) -> list[str]:
    """Returns the flags of the baseline of an architecture's size. Raises UsageError if the plugin has none.

    ``attention`` are the flags that --passage chose for the model; softmax-rotary has its convolutions and positions.
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    if ARCH_MODEL_NAME_REGISTRY[arch] != "fwp_transformer":
        raise UsageError(f"--baseline beside --arch {arch}: expected an architecture of this plugin")
    if not arch.startswith("fwp_"):  # named for its attention; all of these are big
        arch = "fwp_transformer_vaswani_wmt_en_de_big"
    flags = ["--arch", arch.removesuffix("_hybrid"), "--fwp-feature-map", "softmax"]
    if baseline == _ROTARY:
        sites = {flag: _rotary(text) for flag, text in (attention or {}).items()}
        for pair in ({"--fwp-encoder": _ROTARY, "--fwp-decoder": _ROTARY} | sites).items():
            flags += pair
    return flags


def refuse_other(baseline: str, out: Path) -> None:
    """Raises UsageError if ``out`` holds a training of another baseline, before the first model is trained on."""
    from .checkpoint import load_last

    if (state := load_last(folder_in(out))) is None:
        return
    theirs = str(section(state, "model").get("fwp_decoder") or "softmax").partition(",")[0]
    if theirs != baseline:
        raise UsageError(
            f"--baseline {baseline}: --out {out} holds --baseline {printable(theirs)}; expected another --out"
        )


def caveat(updates: list[int], planned: int) -> str | None:
    """Returns a sentence about trainings that made fewer updates than planned; None if there are none.

    ``updates`` are those of two trainings, or of one if --patience ended the other.
    """
    if all(made >= planned for made in updates):
        return None
    if len(updates) == 1:
        made = f"The training that --patience did not end made {updates[0]:,}"
    elif len(set(updates)) == 1:
        made = f"Both trainings made {updates[0]:,}"
    else:
        made = f"The trainings made {' and '.join(format(made, ',') for made in updates)}"
    return (
        f"{made} of the {planned:,} updates planned for a corpus of this size: this compares how fast they learn, "
        "not how good they become."
    )
