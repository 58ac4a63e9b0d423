"""Plans the trainings of `fwp train`, and says which settings they have and how long they take."""

import shlex
from datetime import datetime, timedelta
from pathlib import Path

from ..option import hyphens
from ..options import OPTIONS, SITES
from ..text import duration
from .baseline import folder_in, model_flags
from .beginning import Beginning, Begun
from .commands import say, tool
from .errors import CommandError
from .folders import made
from .plugin import FOLDER
from .prepared import Prepared
from .recipe import NO_SINUSOIDS, SETTINGS, Recipe, unfitting
from .training import Training, left_of, lengths_of

_FEW_UPDATES = 50  # up to so many updates, their time is not measured beforehand
ATTENTION = [f"--fwp-{hyphens(name)}" for name in (*OPTIONS, *SITES)]


def planned_trainings(
    args, prepared: Prepared, out: Path, beginning: Beginning | None, begun: Begun | None
) -> list[Training]:
    """Says what is trained and why, and returns the trainings: that of the model, then that of the baseline, if any."""
    import torch

    from .training_flags import training_flags
    from .trial import seconds_per_update, without

    corpus = prepared.corpus
    tokens = sum(prepared.sides("train")[1])
    recipe = Recipe(
        corpus.words, prepared.lengths("train"), tokens, beginning is not None, passages=args.passage is not None
    )
    cpu = ["--cpu"] if args.cpu or not torch.cuda.is_available() else []
    lacking = unfitting(args.flags)

    def words(folder: Path, model: list[str], flags: list[str], max_update: int | None) -> list[str]:
        chosen = recipe.flags(args.arch, max_update, is_timed=bool(args.minutes))
        if beginning is not None:
            chosen |= _learned_positions(beginning)
        if model:
            del chosen["--arch"]
        source, target = corpus.languages
        parts = [
            *tool("train", prepared.folder, "--user-dir", FOLDER, "--task", "translation", "-s", source, "-t", target),
            *model, *(word for pair in chosen.items() for word in pair), *SETTINGS,
            *(["--stop-time-hours", args.minutes / 60] if args.minutes else []),
            *(recipe.intervals(max_update) if args.minutes and max_update else []),
            *("--save-dir", folder / "checkpoints", "--log-format", "json", "--log-interval", 20), *cpu,
        ]  # fmt: skip
        return [*without([str(word) for word in parts], lacking), *flags]

    model = []
    if beginning is not None:
        model = [*training_flags(beginning.model, beginning.checkpoint), "--finetune-from-model", beginning.checkpoint]
    attention = recipe.attention(args.arch, args.flags)
    of_passages = [word for pair in attention.items() for word in pair]
    if begun is None:
        of_passages += recipe.sinusoids(attention, args.flags)
    elif not begun.has_sinusoids:  # a training goes on as it began
        of_passages.append(NO_SINUSOIDS)
    flags = [*of_passages, *args.flags]
    command = words(out, model, flags, args.max_update)
    lengths = lengths_of(command)
    _say_plan(args, prepared, recipe, lengths, model, of_passages)
    updates, seconds, shortened = lengths.max_update, None, ""
    if updates > _FEW_UPDATES:
        seconds = seconds_per_update(command, out / "seconds_per_update")
    if args.minutes:
        if seconds:
            updates = min(updates, max(1, int(args.minutes * 60 / seconds)))
        command = words(out, model, flags, updates)
        if updates < lengths.max_update:
            shortened = f"; {lengths.max_update:,} without --minutes"
    trainings = [Training(out, command, recipe.updates)]
    if args.baseline:
        folder = made(folder_in(out), "--out")
        softmax = model_flags(args.baseline, args.arch or recipe.arch(), attention)
        command = words(folder, softmax, without(args.flags, ATTENTION), updates)
        trainings.append(Training(folder, command, recipe.updates))
    time = "not measured"
    if seconds:
        time = expected_time(seconds, updates, left_of(trainings, updates), datetime.now())
    say(f"  updates   {updates:,} of at most {lengths.max_tokens:,} tokens{shortened}\n  time      {time}")
    return trainings


def _learned_positions(beginning: Beginning) -> dict[str, str]:
    """Returns the checkpoint's limits for the sides with learned positions, which have as many parameters."""
    task, model = beginning.task, beginning.model
    sides = {"source": "encoder", "target": "decoder"}
    return {
        f"--max-{side}-positions": str(task[f"max_{side}_positions"])
        for side, part in sides.items()
        if model.get(f"{part}_learned_pos") and f"max_{side}_positions" in task
    }


def expected_time(seconds: float, updates: int, left: list[int], now: datetime) -> str:
    """Says how long trainings of so many updates take, and when those that are ``left`` of each will be done."""
    time = f"about {duration(updates * seconds)}, {seconds:.2f} s an update, of each training"
    if len(left) > 1:
        time += f"; {duration(len(left) * updates * seconds)} of both"
    end = now + timedelta(seconds=sum(left) * seconds)
    day = "" if end.date() == now.date() else " on %d %B"
    return f"{time}; done at about {end.strftime(f'%H:%M{day}')}, translations not included"


def _say_plan(args, prepared: Prepared, recipe: Recipe, lengths, model: list[str], attention: list[str]) -> None:
    """Says what was chosen and why, and which lines are left out; refuses parts of which no line is left."""
    corpus, positions = prepared.corpus, lengths.max_target_positions
    is_truncated = "--truncate-source" in args.flags  # sources of any length are cut to the limit
    if not is_truncated:
        positions = min(positions, lengths.max_source_positions)
    counts = {part: len(pairs) for part, pairs in corpus.pairs.items()}
    arch = args.arch or (model[1] if model else recipe.arch())
    why = "that of --finetune-from" if model else "asked for" if args.arch else "chosen for this number of words"
    say(
        f"\n  pairs     {counts['train']:,} to train on, {counts['valid']:,} to validate on, {counts['test']:,} to test"
        f"\n  words     {recipe.words:,} of {args.target} to train on\n  model     {arch} ({why})"
        f"\n  pieces    {prepared.pieces:,} of both languages"
    )
    if any(word.startswith("--fwp-") for word in attention):
        say(f"  attention {shlex.join(attention)} (best on passages)")
    if not any(word.partition("=")[0] == "--dropout" for word in args.flags):
        say(f"  dropout   {recipe.dropout[0]} ({recipe.dropout[1]})")
    for part, count in corpus.without_text.items():
        what = "scored all the same" if part == "test" else "left out"
        if count:
            say(f"  {what}: {count:,} of the pairs of {part}, with no text on one side")
    flags = "--max-source-positions N --max-target-positions N --max-tokens N after --"
    for part, use in (("train", "to train on"), ("valid", "to validate on")):
        sizes = prepared.sides(part)[1] if is_truncated else prepared.lengths(part)
        fitting = [size for size in sizes if size <= positions]
        if not fitting:
            raise CommandError(
                f"all {len(sizes)} lines {use} ({part}) have more than {positions} tokens, the shortest {min(sizes)}; "
                f"{flags}, with N of {max(sizes)} or more, keep them"
            )
        if max(fitting) > lengths.max_tokens:
            raise CommandError(
                f"a line {use} ({part}) has {max(fitting)} tokens, more than a batch of --max-tokens "
                f"{lengths.max_tokens}; expected --max-tokens {max(fitting)} or more after --"
            )
        if left_out := len(sizes) - len(fitting):
            say(
                f"  left out: {left_out:,} of {len(sizes):,} lines {use}, with more than {positions} tokens; "
                f"to keep them, shorten them or add {flags}"
            )
