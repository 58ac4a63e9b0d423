"""Trains a translation model on your own texts: prepares the data, trains, translates the test set and scores it.

  fwp train --texts corpus --source en --target de --out runs/en-de
  fwp train --texts corpus --source en --target de --out runs/en-de --baseline --minutes 30
  fwp train --texts more --source en --target de --out runs/further --finetune-from runs/en-de

The folder --texts contains train.en, valid.en and test.en, and the same files with .de, plain or compressed (.gz). Both
files of a pair have the same number of lines; a line is a sentence, a paragraph or a document. --passage N joins
consecutive lines into passages of at most N words; an empty line ends a passage. To continue after an interruption,
give the same command again. Flags after -- are passed to fairseq-train and override the settings chosen here. Every
command is printed before it runs.

--baseline also trains a softmax Transformer of the same size, with the same data and settings, in the folder `baseline`
in --out, and compares BLEU with a paired test. It is fairseq's own, with sinusoidal positions, or, with --baseline
softmax-rotary, one with rotary positions in the self-attention of encoder and decoder. If --passage chooses the
attention, this one too has rotary positions in cross-attention and short convolutions, and it keeps the sinusoids,
which the model then lacks.
"""

import shlex
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from ..checkpoint_content import plain, section
from ..files import locked, named, refuse_interpreted, replaced
from ..option import hyphens
from ..options import OPTIONS, SITES
from ..text import duration, printable
from . import bleu_tokenizer, commands
from .baseline import BASELINES, caveat, folder_in, model_flags, refuse_other
from .commands import called, fwp, say, tool
from .corpus import Corpus
from .errors import CommandError, UsageError, refuse_outside
from .paragraphs import add_passage
from .plugin import FOLDER, import_plugin
from .prepared import Prepared, vocabulary_of
from .recipe import NO_SINUSOIDS, SETTINGS, Recipe, unfitting
from .significance import check_seed
from .training import Training, left_of, lengths_of

# The flags of fairseq-train that the steps after the training rely on.
_OWN = ("--arch", "--save-dir", "--no-save", "--source-lang", "--target-lang", "--user-dir", "--finetune-from-model")
_OWN += ("--task", "--dataset-impl", "--checkpoint-suffix", "--log-format")
# Flags with which the same command could not go on with its training.
_ENDING = ("--restore-file", "--no-last-checkpoints", "--no-save-optimizer-state", "--reset-optimizer")
_ENDING += ("--reset-lr-scheduler", "--reset-dataloader", "--reset-meters")
_OWN_LETTERS = ("-a", "-s", "-t")  # architecture and languages, which may follow without a space
# Flags of fairseq-train that it refuses in the first update or not at all.
_SHARES = ("dropout", "attention_dropout", "activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
_SHARES += ("label_smoothing",)
_FEW_UPDATES = 50  # whose time need not be known before
ATTENTION = [f"--fwp-{hyphens(name)}" for name in (*OPTIONS, *SITES)]


def add_arguments(parser) -> None:
    parser.add_argument("--texts", required=True, type=Path, metavar="DIR")
    parser.add_argument("--source", required=True, metavar="LANGUAGE", help="suffix of the source files, such as en")
    parser.add_argument("--target", required=True, metavar="LANGUAGE", help="suffix of the target files")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder for checkpoints and scores")
    parser.add_argument(
        "--data", type=Path, metavar="DIR",
        help="folder for the SentencePiece model and binarised texts, which trainings can share (default: --out)",
    )  # fmt: skip
    add_passage(parser, "join lines into passages of at most N words (default: do not join lines)")
    parser.add_argument("--arch", metavar="NAME", help="architecture (default: a hybrid chosen by the corpus size)")
    parser.add_argument("--max-update", type=int, metavar="N", help="updates (default: chosen by the corpus size)")
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="stop each training after N minutes, and choose its updates to fit"
    )
    parser.add_argument(
        "--vocabulary",
        type=int,
        metavar="N",
        help="number of SentencePiece pieces (default: chosen by the corpus size)",
    )
    parser.add_argument(
        "--finetune-from", type=Path, metavar="MODEL",
        help="fine-tune this checkpoint, which may come from fwp convert, or the one in this folder",
    )  # fmt: skip
    parser.add_argument(
        "--baseline", nargs="?", const="softmax", choices=BASELINES,
        help="also train softmax attention, and compare: fairseq's Transformer (softmax, which is the default), or one "
        "with rotary positions",
    )  # fmt: skip
    bleu_tokenizer.add_argument(parser)
    parser.add_argument("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="flags for fairseq-train")


def _check_architecture(args) -> None:
    """Refuses an architecture that cannot translate, before anything is prepared."""
    from fairseq.models import ARCH_MODEL_REGISTRY, FairseqEncoderDecoderModel

    model = FairseqEncoderDecoderModel if args.arch is None else ARCH_MODEL_REGISTRY.get(args.arch, object)
    if not issubclass(model, FairseqEncoderDecoderModel):
        what = "does not translate" if args.arch in ARCH_MODEL_REGISTRY else "is unknown"
        raise UsageError(f"--arch {args.arch} {what}; expected a translation model, as `fwp archs` lists them")
    if args.baseline and args.arch:
        model_flags(args.baseline, args.arch)


def _check(args) -> None:
    refuse_outside(args, 1, "--passage", "--max-update", "--vocabulary")
    if args.minutes is not None and not 0 < args.minutes < 1e6:
        raise UsageError(f"--minutes {args.minutes:g}: expected more than 0")
    if args.flags and not args.flags[0].startswith("-"):
        raise UsageError(f"{args.flags[0]}: expected flags alone; those of fairseq-train come after --")
    if own := [word for word in args.flags if word.partition("=")[0] in _OWN or word.startswith(_OWN_LETTERS)]:
        raise UsageError(
            f"{own[0]} after -- contradicts fwp train, which sets it itself, because its later steps rely on it "
            "(it has --out, --arch, --source, --target and --finetune-from)"
        )
    if ending := [word for word in args.flags if word.partition("=")[0] in _ENDING]:
        raise UsageError(
            f"{ending[0]} after --: the same command could not go on; to go on from another checkpoint, copy it to "
            "checkpoints/checkpoint_last.pt in --out"
        )
    if args.finetune_from and (other := [n for n in ("arch", "vocabulary", "baseline") if getattr(args, n)]):
        raise UsageError(f"--finetune-from and --{other[0]}: the checkpoint has its own model and pieces")
    if args.baseline:
        check_seed()  # the comparison at the end needs it
    for flag, folder in (("--out", args.out), ("--data", args.data or args.out)):
        try:
            refuse_interpreted(folder.resolve())
        except ValueError as error:
            raise UsageError(f"{flag} {error}") from None


def _check_flags(args, beginning) -> None:
    """Refuses flags after -- that fairseq-train would refuse, before anything is prepared."""
    from fairseq import options

    from ..config import check_flags
    from .trial import without

    def refuse(message: str):
        raise UsageError(f"{message} (among the flags after --, which fairseq-train gets)")

    arch = beginning[2].get("_name") if beginning else args.arch or "fwp_transformer_tiny_hybrid"
    parser = options.get_training_parser()
    parser.error = refuse
    settings = without(SETTINGS, unfitting(args.flags))
    try:
        parsed = options.parse_args_and_arch(parser, ["data", "--arch", arch, *settings, *args.flags])
        if hasattr(parsed, "fwp_decoder"):
            check_flags(parsed)
        for name in _SHARES:
            if not 0 <= (share := getattr(parsed, name, None) or 0) < 1:
                raise ValueError(f"--{hyphens(name)} {share:g}: expected at least 0 and less than 1")
    except ValueError as error:
        refuse(str(error))


def _made(folder: Path, flag: str) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{flag} {folder}: there is a file, expected a folder") from None
    return folder


def run(args) -> int:
    _check(args)
    import_plugin()
    _check_architecture(args)
    if args.tokenize:
        bleu_tokenizer.bleu_metric([], args.tokenize)
    corpus = Corpus(args.texts, (args.source, args.target), args.passage)
    beginning = _beginning(args)
    _check_flags(args, beginning)
    out, data = _made(args.out.resolve(), "--out"), _made((args.data or args.out).resolve(), "--data")

    def busy() -> None:
        raise CommandError(f"--out {out} is in use by another fwp train; wait for it, or choose another")

    def wait() -> None:
        say(f"waits for another fwp train, which uses --data {data}")

    with locked(out, busy):
        prepared = Prepared(corpus, data)
        begun = _begun(out)
        _refuse_other_training(out, begun, prepared, beginning)
        if args.baseline:
            refuse_other(args.baseline, out)
        with nullcontext() if data == out or prepared.is_made else locked(data, wait):
            vocabulary = beginning and vocabulary_of(beginning[0], beginning[1], corpus.languages)
            prepared.make(args.vocabulary, vocabulary, "--out" if data == out else "--data", say)
        trainings = _trainings(args, prepared, out, beginning, begun)
        most = None
        for training in trainings:
            most = training.run(most)
            _score(args, corpus, training)
        _conclude(args, corpus, out, trainings)
    return 0


class Begun(NamedTuple):
    """What a training began with, which its last checkpoint tells."""

    data: str
    finetune_from: str | None
    has_sinusoids: bool


def _begun(out: Path) -> Begun | None:
    """Returns what the training in ``out`` began with; None if there is none."""
    from .checkpoint import load_last

    if (state := load_last(out)) is None:
        return None
    return Begun(
        str(section(state, "task").get("data")),
        section(state, "checkpoint").get("finetune_from_model"),
        not section(state, "model").get("no_token_positional_embeddings"),
    )


def _refuse_other_training(out: Path, begun: Begun | None, prepared: Prepared, beginning) -> None:
    """Refuses an --out whose training has other data or began from another checkpoint, before texts are prepared."""
    if out != prepared.folder and Prepared(prepared.corpus, out).is_made:  # whose dictionaries `fwp translate` finds
        raise UsageError(f"--out {out} holds prepared texts of its own; expected no --data, or another --out")
    if begun is None:
        return
    theirs, ours = begun.finetune_from, beginning and str(beginning[0])
    # A training goes on without the checkpoint that it began from, whose folder may have been renamed.
    if theirs != ours and not (theirs and ours and not Path(theirs).exists()):
        held = f"with --finetune-from {printable(theirs)}" if theirs else "without --finetune-from"
        raise UsageError(f"--out {out} holds a training {held}; expected the same here, or another --out")
    is_other = begun.data != str(prepared.folder)  # unless its folder has been renamed
    if is_other and (not prepared.is_made or Path(begun.data).exists()):
        raise UsageError(
            f"--out {out} holds a training with --data {printable(begun.data)}; expected that or another --out"
        )


def _beginning(args) -> tuple[Path, dict, dict] | None:
    """Returns the checkpoint of --finetune-from with the options of its task and of its model."""
    from .checkpoint import load
    from .translator import checkpoint_in

    if args.finetune_from is None:
        return None
    checkpoint = checkpoint_in(args.finetune_from).resolve()
    state = load(checkpoint, mmap=True)
    return checkpoint, section(state, "task"), plain(section(state, "model"))


def _trainings(args, prepared: Prepared, out: Path, beginning, begun: Begun | None) -> list[Training]:
    """Says what is trained and why, and returns the trainings, first the one that is asked for."""
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
        model = [*training_flags(beginning[2], beginning[0]), "--finetune-from-model", beginning[0]]
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
        folder = _made(folder_in(out), "--out")
        softmax = model_flags(args.baseline, args.arch or recipe.arch(), attention)
        command = words(folder, softmax, without(args.flags, ATTENTION), updates)
        trainings.append(Training(folder, command, recipe.updates))
    time = "not measured"
    if seconds:
        time = expected_time(seconds, updates, left_of(trainings, updates), datetime.now())
    say(f"  updates   {updates:,} of at most {lengths.max_tokens:,} tokens{shortened}\n  time      {time}")
    return trainings


def _learned_positions(beginning) -> dict[str, str]:
    """Returns the limits of the checkpoint for the sides whose positions are parameters, as many as the limit."""
    _, task, model = beginning
    sides = {"source": "encoder", "target": "decoder"}
    return {
        f"--max-{side}-positions": str(task[f"max_{side}_positions"])
        for side, part in sides.items()
        if model.get(f"{part}_learned_pos") and f"max_{side}_positions" in task
    }


def expected_time(seconds: float, updates: int, left: list[int], now: datetime) -> str:
    """Says how long trainings of so many updates take, and when those that are left of each will have been made."""
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
                f"{flags}, with N of {max(sizes)} or more, take them in"
            )
        if max(fitting) > lengths.max_tokens:
            raise CommandError(
                f"a line {use} ({part}) has {max(fitting)} tokens, more than a batch of --max-tokens "
                f"{lengths.max_tokens}; expected --max-tokens {max(fitting)} or more after --"
            )
        if left_out := len(sizes) - len(fitting):
            say(
                f"  left out: {left_out:,} of {len(sizes):,} lines {use}, with more than {positions} tokens; "
                f"shorter ones, or {flags}, take them in"
            )


def _score(args, corpus: Corpus, training: Training) -> None:
    """Translates the test set."""
    source, _ = corpus.write_test_set(training.folder, None if args.finetune_from else "NFC")
    cpu = ["--cpu"] if args.cpu else []
    path = training.translations(args.target)
    with open(source, "rb") as sources, replaced(path) as translations, named(path):
        commands.run(*fwp("translate", training.checkpoints, *cpu), stdin=sources, stdout=translations)


def _say_caveat(trainings: list[Training]) -> None:
    """Says if the trainings are too short to show which model is better; those that --patience ended are not."""
    updates = [made for made, limit in (training.updates() for training in trainings) if limit != "patience"]
    if None not in updates and (text := caveat(updates, trainings[0].planned)):
        say(text)


def _conclude(args, corpus: Corpus, out: Path, trainings: list[Training]) -> None:
    """Scores the translations, compares them, draws the curves, and says what can be done with the model."""
    from .translator import checkpoint_in

    target = out / f"references.{args.target}"
    tokenizer = ["--tokenize", args.tokenize] if args.tokenize else []
    hypotheses = [training.translations(args.target) for training in trainings]
    score = fwp("bleu", "--hypotheses", hypotheses[0], "--references", target, "--metrics", "bleu", "chrf", *tokenizer)
    commands.run(*score)
    if len(trainings) > 1:
        pair = ["--hypotheses", *reversed(hypotheses), "--references", target, *tokenizer]
        commands.run(*fwp("bleu", *pair, "--metrics", "bleu", "chrf", "--paired-bs"))
        _say_caveat(trainings)
    table = fwp("table", "--results", out, "--references", target, *tokenizer)
    try:
        commands.run(*table, "--axis", "updates", "--plot", out / "curve.svg")
    except CommandError as error:  # the model is there all the same
        say(f"no {out / 'curve.svg'}: {error}")
    document = "" if args.passage is None else f" --document --passage {args.passage}"
    checkpoints, name = trainings[0].checkpoints, called()
    comparison = ""
    if args.finetune_from:
        pair = ["--hypotheses", f"CONTROL/translations.{args.target}", hypotheses[0], "--references", target]
        comparison = (
            f"\ncomparison   {name} {shlex.join(map(str, ['bleu', *pair, *tokenizer, '--paired-bs']))}"
            "\n             (CONTROL is a training of as many updates to compare with: docs/conversion.md)"
        )
    say(
        f"\nmodel        {checkpoint_in(checkpoints)}"
        f"\ntranslation  {name} translate {shlex.quote(str(checkpoints))}{document} < FILE"
        f"\nscores       {name} {shlex.join(map(str, score[3:]))}"
        f"{comparison}"
        f"\ntable        {name} {shlex.join(map(str, table[3:]))}"
        f"\ncurve        {out / 'curve.svg'} (as .png: the table with --axis updates --plot curve.png)"
        "\nto go on     the same command with -- --patience N, if that ended it, or with a larger "
        f"{'--minutes' if args.minutes else '--max-update'}\n"
    )
