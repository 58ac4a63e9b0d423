"""What a training begins with: a checkpoint (--finetune-from), or what an earlier call left in --out."""

from pathlib import Path
from typing import NamedTuple

from ..checkpoint_content import plain, section
from ..text import printable
from .errors import UsageError
from .prepared import Prepared


class Beginning(NamedTuple):
    """The checkpoint of --finetune-from, with the options of its task and of its model."""

    checkpoint: Path
    task: dict
    model: dict


def beginning_of(path: Path | None) -> Beginning | None:
    """Opens the checkpoint of --finetune-from; returns None without this flag."""
    from .checkpoint import load
    from .translator import checkpoint_in

    if path is None:
        return None
    checkpoint = checkpoint_in(path).resolve()
    state = load(checkpoint, mmap=True)
    return Beginning(checkpoint, section(state, "task"), plain(section(state, "model")))


class Begun(NamedTuple):
    """What a training began with, which its last checkpoint tells."""

    data: str
    finetune_from: str | None
    has_sinusoids: bool


def begun_in(out: Path) -> Begun | None:
    """Returns what the training in ``out`` began with; None if there is none."""
    from .checkpoint import load_last

    if (state := load_last(out)) is None:
        return None
    return Begun(
        str(section(state, "task").get("data")),
        section(state, "checkpoint").get("finetune_from_model"),
        not section(state, "model").get("no_token_positional_embeddings"),
    )


def refuse_other_training(out: Path, begun: Begun | None, prepared: Prepared, beginning: Beginning | None) -> None:
    """Refuses an --out whose training has other data or began from another checkpoint, before texts are prepared."""
    if out != prepared.folder and Prepared(prepared.corpus, out).is_made:  # `fwp translate` would take its dictionaries
        raise UsageError(f"--out {out} holds prepared texts of its own; expected no --data, or another --out")
    if begun is None:
        return
    theirs, ours = begun.finetune_from, beginning and str(beginning.checkpoint)
    # A training goes on without the checkpoint that it began from, whose folder may have been renamed.
    if theirs != ours and not (theirs and ours and not Path(theirs).exists()):
        held = f"with --finetune-from {printable(theirs)}" if theirs else "without --finetune-from"
        raise UsageError(f"--out {out} holds a training {held}; expected the same here, or another --out")
    # Its folder may have been renamed or copied.
    if begun.data != str(prepared.folder) and (not prepared.is_made or prepared.differs_from(Path(begun.data))):
        raise UsageError(
            f"--out {out} holds a training with --data {printable(begun.data)}; expected that or another --out"
        )
