"""The softmax Transformer that ``fwp train --baseline`` trains beside a model, and what the comparison says."""

from pathlib import Path

from ..checkpoint_content import section
from ..text import printable
from .errors import UsageError

_ROTARY = "softmax-rotary"
# The flags of each baseline, beside --fwp-feature-map softmax.
BASELINES = {"softmax": [], _ROTARY: ["--fwp-encoder", _ROTARY, "--fwp-decoder", _ROTARY]}
# Beside the hybrid for passages, this baseline has the hybrid's convolutions and positions in cross-attention too.
_WITH_CONVOLUTIONS = f"{_ROTARY},conv-size=4"
_FOR_PASSAGES = [
    *("--fwp-encoder", _WITH_CONVOLUTIONS, "--fwp-decoder", _WITH_CONVOLUTIONS),
    *("--fwp-cross", _ROTARY),
]


def folder_in(out: Path) -> Path:
    return out / "baseline"


def model_flags(baseline: str, arch: str, for_passages: bool = False) -> list[str]:
    """Returns the flags of the baseline of an architecture's size. Raises UsageError if the plugin has none."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    if ARCH_MODEL_NAME_REGISTRY[arch] != "fwp_transformer":
        raise UsageError(f"--baseline beside --arch {arch}: expected an architecture of this plugin")
    if not arch.startswith("fwp_"):  # named for its attention; all of these are big
        arch = "fwp_transformer_vaswani_wmt_en_de_big"
    flags = _FOR_PASSAGES if for_passages and baseline == _ROTARY else BASELINES[baseline]
    return ["--arch", arch.removesuffix("_hybrid"), "--fwp-feature-map", "softmax", *flags]


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
        f"{made} of the {planned:,} updates planned for so many words: this compares how fast they learn, not how good "
        "they become."
    )
