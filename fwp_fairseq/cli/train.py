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
attention of the model, the baseline softmax-rotary too has rotary positions in cross-attention and short convolutions;
it keeps the sinusoids, which the model then lacks.
"""

from contextlib import nullcontext

from ..files import locked
from . import bleu_tokenizer
from .baseline import refuse_other
from .beginning import beginning_of, begun_in, refuse_other_training
from .commands import say
from .conclusion import conclude, translate_test_set
from .corpus import Corpus
from .errors import CommandError
from .folders import made
from .plan import planned_trainings
from .plugin import import_plugin
from .prepared import Prepared, vocabulary_of
from .train_arguments import add_arguments, check, check_architecture, check_flags_after

__all__ = ["add_arguments", "run"]


def run(args) -> int:
    check(args)
    import_plugin()
    check_architecture(args)
    if args.tokenize:
        bleu_tokenizer.bleu_metric([], args.tokenize)
    corpus = Corpus(args.texts, (args.source, args.target), args.passage)
    beginning = beginning_of(args.finetune_from)
    check_flags_after(args, beginning)
    out, data = made(args.out.resolve(), "--out"), made((args.data or args.out).resolve(), "--data")

    def busy() -> None:
        raise CommandError(f"--out {out} is in use by another fwp train; wait for it, or choose another")

    def wait() -> None:
        say(f"waits for another fwp train, which uses --data {data}")

    with locked(out, busy):
        prepared = Prepared(corpus, data)
        begun = begun_in(out)
        refuse_other_training(out, begun, prepared, beginning)
        if args.baseline:
            refuse_other(args.baseline, out)
        with nullcontext() if data == out or prepared.is_made else locked(data, wait):
            vocabulary = beginning and vocabulary_of(beginning.checkpoint, beginning.task, corpus.languages)
            prepared.make(args.vocabulary, vocabulary, "--out" if data == out else "--data", say)
        trainings = planned_trainings(args, prepared, out, beginning, begun)
        most = None
        for training in trainings:
            most = training.run(most)
            translate_test_set(args, corpus, training)
        conclude(args, corpus, out, trainings)
    return 0
