"""Trains a translation model on your own texts: pieces, binarised data, training, translations of the test set, scores.

  fwp train --texts corpus --source en --target de --out runs/en-de
  fwp train --texts corpus --source en --target de --out runs/softmax -- --fwp-feature-map softmax

The folder of texts has train.en, valid.en and test.en, and the same with .de: as many lines, each a sentence, a
paragraph or a document. --window N joins consecutive lines, up to an empty one, into windows of at most N words, as
`fwp translate --document` does. Interrupted, the same command goes on. Flags after -- are fairseq-train's and come
last, so that they win. Every command is printed before it runs.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

from ..files import locked, refuse_interpreted, replaced, write_atomically
from ..text import printable
from . import Parser
from .corpus import PARTS, SETTINGS, Corpus, Recipe
from .errors import CommandError, UsageError, refuse_below
from .plugin import FOLDER, import_plugin
from .processes import die_with_parent, environment
from .progress import Progress

# The flags of fairseq-train that the steps after the training rely on.
_OWN = ("--save-dir", "--no-save", "--source-lang", "--target-lang", "--user-dir")
_OWN_LETTERS = ("-s", "-t")  # languages, which may follow without a space
_LONGEST_ERROR = 500  # characters


def add_arguments(parser) -> None:
    parser.add_argument("--texts", required=True, type=Path, metavar="DIR")
    parser.add_argument("--source", required=True, metavar="LANGUAGE", help="the ending of the sources, such as en")
    parser.add_argument("--target", required=True, metavar="LANGUAGE")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder of data, checkpoints and scores")
    parser.add_argument("--window", type=int, metavar="N", help="words of joined lines (default: lines stay alone)")
    parser.add_argument("--arch", metavar="NAME", help="(default: a hybrid that fits the size of the corpus)")
    parser.add_argument("--max-update", type=int, metavar="N", help="(default: what fits the size of the corpus)")
    parser.add_argument("--vocabulary", type=int, metavar="N", help="pieces (default: what fits the corpus)")
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG", help="of fairseq-train")


def _print(text: str) -> None:
    print(text, flush=True)


def _say(words: list[str]) -> None:
    _print(f"\n$ {shlex.join(words)}")


def _run(*words: object, **keywords) -> None:
    words = [str(word) for word in words]
    _say(words)
    status = subprocess.run(words, preexec_fn=die_with_parent, **keywords).returncode
    if status:
        raise CommandError(f"{shlex.join(words[:4])} ... ended with status {status}")


def _ends(log: Path) -> str:
    """Where the output of a command is that failed, and its last line, in which fairseq names the cause."""
    last = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
    last = printable(last)
    if len(last) > _LONGEST_ERROR:  # the cause is at its beginning, the advice at its end
        last = f"{last[: _LONGEST_ERROR // 2]} ... {last[-_LONGEST_ERROR // 2 :]}"
    return f"{log} ends with: {last}"


def _logged(log: Path, *words: object) -> None:
    with open(log, "w", encoding="utf-8") as file:
        try:
            _run(*words, stdout=file, stderr=file)
        except CommandError as error:
            raise CommandError(f"{error}; {_ends(log)}") from None


def _tool(name: str, *words: object) -> list[object]:
    return [sys.executable, "-m", f"fairseq_cli.{name}", *words]


def _fwp(*words: object) -> list[object]:
    return [sys.executable, "-m", "fwp_fairseq", *words]


def lengths_of(words: list[str]) -> argparse.Namespace:
    """The numbers that a command of fairseq-train comes to, whose flags may stand in it more than once."""
    parser = Parser(add_help=False, allow_abbrev=False)
    for flag in ("--max-source-positions", "--max-target-positions", "--max-update", "--max-epoch"):
        parser.add_argument(flag, type=int, default=0)
    return parser.parse_known_args(words)[0]


def _follow(words: list[str], log, progress: Progress) -> int:
    """Runs the command, copies its output to the file ``log`` and says how far it is; returns its status."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment(),
        preexec_fn=die_with_parent,
    ) as run:  # fmt: skip
        try:
            for line in run.stdout:
                log.write(line)
                log.flush()
                progress.line(line)
        except BaseException:
            run.terminate()
            raise
    return run.returncode


def _prepare(corpus: Corpus, out: Path, vocabulary: int) -> None:
    """Learns the pieces and binarises the texts, unless that is done; refuses a folder made from other texts."""
    made = {
        "texts": corpus.digest(),
        "vocabulary": vocabulary,
        "languages": list(corpus.languages),
        "window": corpus.window,
    }
    stamp = out / "prepared.json"
    if stamp.is_file():
        before = json.loads(stamp.read_text())
        if other := [name for name in made if made[name] != before.get(name)]:
            was = ", ".join("other texts" if name == "texts" else f"{name} {before.get(name)}" for name in other)
            now = ", ".join(f"{name} {made[name]}" for name in other if name != "texts")
            raise UsageError(
                f"--out {out} holds a training with {was}{now and f', not {now}'}; expected the same, or another folder"
            )
        return
    corpus.write_pieces(out, vocabulary)
    source, target = corpus.languages
    log = out / "preprocess.log"
    if log.exists():  # a call that was stopped here; fairseq refuses dictionaries that are there
        for language in corpus.languages:
            (out / f"dict.{language}.txt").unlink(missing_ok=True)
    _logged(
        log,
        *_tool("preprocess", "--user-dir", FOLDER, "--source-lang", source, "--target-lang", target),
        *("--joined-dictionary", "--destdir", out, "--workers", 1),
        *(word for part in PARTS for word in (f"--{part}pref", out / f"{part}.pieces")),
    )
    write_atomically(stamp, json.dumps(made))


def _train(args, corpus: Corpus, out: Path) -> None:
    import torch

    recipe = Recipe.of(corpus, out)
    cpu = ["--cpu"] if args.cpu or not torch.cuda.is_available() else []
    source, target = corpus.languages
    words = [
        *_tool("train", out, "--user-dir", FOLDER, "--task", "translation", "-s", source, "-t", target),
        *(word for pair in recipe.flags(args.arch, args.max_update).items() for word in pair),
        *SETTINGS, "--save-dir", out / "checkpoints", "--log-format", "json", "--log-interval", 20, *cpu, *args.flags,
    ]  # fmt: skip
    words = [str(word) for word in words]
    lengths = lengths_of(words)
    positions = min(lengths.max_source_positions, lengths.max_target_positions)
    if too_long := recipe.too_long(positions):
        print(
            f"\n{too_long} of {len(recipe.lengths)} lines to train on have more than {positions} tokens and are left "
            "out; shorter ones, or --max-source-positions N --max-target-positions N --max-tokens N after --, take "
            "them in"
        )
    _say(words)
    path = out / "train.log"
    with open(path, "a", encoding="utf-8") as log:
        status = _follow(words, log, Progress(lengths.max_epoch, lengths.max_update, _print))
    if status:
        raise CommandError(f"fairseq-train ended with status {status}; {_ends(path)}")


def _check_architecture(args) -> None:
    """Refuses an architecture that cannot translate, before anything is prepared."""
    from fairseq.models import ARCH_MODEL_REGISTRY, FairseqEncoderDecoderModel

    found = FairseqEncoderDecoderModel if args.arch is None else ARCH_MODEL_REGISTRY.get(args.arch, object)
    if not issubclass(found, FairseqEncoderDecoderModel):
        what = "does not translate" if args.arch in ARCH_MODEL_REGISTRY else "is unknown"
        raise UsageError(f"--arch {args.arch} {what}; expected a translation model, as `fwp archs` lists them")


def run(args) -> int:
    refuse_below(args, 1, "--window", "--max-update", "--vocabulary")
    if args.flags and not args.flags[0].startswith("-"):
        raise UsageError(f"{args.flags[0]}: expected flags alone; those of fairseq-train come after --")
    if own := [word for word in args.flags if word.partition("=")[0] in _OWN or word.startswith(_OWN_LETTERS)]:
        raise UsageError(
            f"{own[0]} after -- contradicts fwp train, which saves in --out and has --source, --target and this plugin"
        )
    lengths_of(args.flags)
    out = args.out.resolve()
    try:
        refuse_interpreted(out)
    except ValueError as error:
        raise UsageError(f"--out {error}") from None
    import_plugin()
    _check_architecture(args)
    corpus = Corpus(args.texts, (args.source, args.target), args.window)

    def busy() -> None:
        raise CommandError(f"--out {out} is in use by another fwp train; wait for it, or choose another")

    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"--out {out}: there is a file, expected a folder") from None
    with locked(out, busy):
        _prepare(corpus, out, args.vocabulary or corpus.vocabulary)
        _train(args, corpus, out)
        _score(args, corpus, out)
    return 0


def _score(args, corpus: Corpus, out: Path) -> None:
    """Translates and scores the test set, and says what can be done with the model."""
    from .translator import checkpoint_in

    source, target = corpus.write_test_set(out)
    hypotheses, checkpoints = out / f"translations.{args.target}", out / "checkpoints"
    cpu = ["--cpu"] if args.cpu else []
    with open(source, "rb") as given, replaced(hypotheses) as found:
        _run(*_fwp("translate", checkpoints, *cpu), stdin=given, stdout=found)
    score = _fwp("bleu", "--hypotheses", hypotheses, "--references", target, "--metrics", "bleu", "chrf")
    _run(*score)
    document = "" if args.window is None else f" --document --window {args.window}"
    print(
        f"\nmodel        {checkpoint_in(checkpoints)}"
        f"\ntranslation  fwp translate {shlex.quote(str(checkpoints))}{document} < FILE"
        f"\nscores       {shlex.join(['fwp', *map(str, score[3:])])}"
        f"\nto go on     the same command with -- --patience N, if that ended it, or with a larger --max-update\n"
    )
