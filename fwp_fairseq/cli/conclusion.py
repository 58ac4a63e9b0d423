"""What `fwp train` does with a trained model: translates the test set, scores, compares, and says how to go on."""

import shlex
from pathlib import Path

from ..files import named, replaced
from . import commands
from .baseline import caveat
from .commands import called, fwp, say
from .corpus import Corpus
from .errors import CommandError
from .training import Training


def translate_test_set(args, corpus: Corpus, training: Training) -> None:
    """Writes the test set and its translations into the folder of the training."""
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


def conclude(args, corpus: Corpus, out: Path, trainings: list[Training]) -> None:
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
