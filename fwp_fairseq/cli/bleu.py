"""Scores translations with sacreBLEU against raw references, and prints each score with its signature.

  fwp bleu --hypotheses runs/a/generate-test.txt --references test.de --metrics bleu chrf ter --confidence
  fwp bleu --hypotheses a.txt --references test.zh --metrics bleu chrf
  fwp bleu --hypotheses a.txt b.txt c.txt --references test.de --paired-bs

--hypotheses is plain detokenised text, or the output of fairseq-generate, which is recognised by its H- and D- lines.
Of such output, the D- lines are scored in the order of their ids, or the H- lines if there are no D- lines, and
SentencePiece pieces are joined. The references are raw text with one sentence per line, or a .gz file of it. Do not use
fairseq's T- lines as references, because they contain <<unk>>. The flags from --metrics on are sacreBLEU's own; the
environment variable SACREBLEU_SEED sets its random seed. Without --tokenize, the tokenizer for BLEU depends on the
script of the references: zh for Chinese; ja-mecab and ko-mecab for Japanese and Korean if they are installed, otherwise
char; char for other scripts without spaces between words; 13a for all others. The signature names it.

To get the tokenised BLEU of multi-bleu.perl and fairseq-score, compare tokens before detokenisation with those of the
references: --lines H --references TOKENS --tokenize none --smooth-method none --force

Several systems are compared with one of sacreBLEU's paired tests, with the first system as the baseline. The p-value is
(c + 1) / (n + 1), where c is the number of samples, among n random ones, whose scores differ at least as much as those
of the systems. * marks p-values below 0.05. The bootstrap subtracts the mean of all samples from each difference. If
only a few sentences differ, many samples are equal, and the error of this mean can put samples that tie with the
systems just below them; such samples count too.
"""

import argparse
import os
import re
import signal
import sys
from unittest import mock

from .bleu_tokenizer import make_metric, tokenizer_of, writes_spaces
from .errors import CommandError, UsageError, refuse_outside
from .significance import check_seed, paired

_THEIRS = re.compile(r"metrics|confidence|width|(bleu|chrf|ter|confidence|paired)_.*")
_MEANING = """
p is the probability of a difference at least as large if both systems were equally good. It is computed from the
sentences of this test set, and says nothing about trainings with other seeds. The smallest possible p is {:.2g}
({:,} samples)."""


def add_arguments(parser) -> None:
    parser.add_argument("--hypotheses", required=True, nargs="+", metavar="FILE", help="one file per system")
    parser.add_argument("--references", required=True, metavar="FILE")
    parser.add_argument(
        "--compound-split",
        action="store_true",
        help="also print tokenised BLEU with compounds split, as papers on WMT14 English-German reported",
    )
    parser.add_argument(
        "--lines",
        choices=["D", "H"],
        help="the lines of fairseq-generate to score: D (detokenised) or H (before detokenisation); default: D if "
        "there are any, else H",
    )
    parser.add_argument("--remove-bpe", action="store_true", help="join the pieces of subword-nmt (word@@ )")
    parser.add_argument("--json", action="store_true", help="print sacreBLEU's own JSON")
    for action in _flags_of_sacrebleu():
        parser._add_action(action)
    parser.set_defaults(width=2)


def _flags_of_sacrebleu() -> list[argparse.Action]:
    """Returns sacreBLEU's flags for its metrics and tests, as its own command defines them."""
    handler = signal.getsignal(signal.SIGPIPE)
    from sacrebleu import sacrebleu

    signal.signal(signal.SIGPIPE, handler)  # which importing the command sets to end the process
    with mock.patch.object(argparse.ArgumentParser, "parse_args", lambda parser: parser):
        theirs = sacrebleu.parse_args()
    return [action for action in theirs._actions if _THEIRS.fullmatch(action.dest)]


def _metrics(args, references: list[str]) -> dict:
    from sacrebleu.utils import args_to_dict

    if "bleu" in args.metrics and args.bleu_tokenize is None:
        args.bleu_tokenize = tokenizer_of(references)
    metrics = {name.upper(): make_metric(name, **args_to_dict(args, name, strip_prefix=True)) for name in args.metrics}
    if args.compound_split:
        from .compound_split import NAME, CompoundSplitBLEU

        metrics[NAME] = CompoundSplitBLEU()
    return metrics


def _about_words(args, references: list[str]) -> str:
    """Returns a message if TER or chrF take whole sentences for words, because no spaces divide them; else ""."""
    divides_for_ter = args.ter_normalized and args.ter_asian_support
    counting = ["chrF with --chrf-word-order"] * ("chrf" in args.metrics and args.chrf_word_order > 0)
    counting += ["TER"] * ("ter" in args.metrics and not divides_for_ter)
    if not counting or writes_spaces(references):
        return ""
    advice = " (for Chinese and Japanese: --ter-normalized --ter-asian-support)" if "TER" in counting else ""
    return f"{' and '.join(counting)}: words end at spaces, which this language does not write between them{advice}"


def _score(args, hypotheses: list[str], references: list[str]) -> None:
    texts = []
    for metric in _metrics(args, references).values():
        score = metric.corpus_score(hypotheses, [references], n_bootstrap=args.confidence_n if args.confidence else 1)
        texts.append(score.format(args.width, signature=metric.get_signature().format(), is_json=args.json))
    print("[\n" + ",\n".join(texts) + "\n]" if args.json else "\n".join(texts))


def _compare(args, systems: dict[str, list[str]], references: list[str]) -> None:
    """Prints the results of a paired test of the first system with each of the others."""
    from sacrebleu.utils import Color, print_results_table

    if args.paired_bs and len(references) == 1:
        print("--paired-bs: all samples of one sentence are alike, so the p-value means nothing", file=sys.stderr)
    kind, samples = ("bs", args.paired_bs_n) if args.paired_bs else ("ar", args.paired_ar_n)
    signatures, results = paired(systems, references, _metrics(args, references), kind, samples, args.paired_jobs)
    Color.ENABLE_COLORS = False
    args.format = "json" if args.json else "text"
    print_results_table(results, signatures, args)
    if not args.json:
        print(_MEANING.format(1 / (samples + 1), samples))


def _check(args) -> None:
    """Refuses numbers that are out of range, which sacreBLEU does not check."""
    refuse_outside(args, 0, "--width", most=100)
    refuse_outside(args, 0, "--chrf-word-order", "--chrf-beta", "--paired-jobs")
    refuse_outside(args, 1, "--chrf-char-order", "--paired-bs-n", "--paired-ar-n")
    refuse_outside(args, 2, "--confidence-n")
    args.smooth_value = args.bleu_smooth_value  # sacreBLEU's name for it
    refuse_outside(args, 0, "--smooth-value")
    check_seed()
    if args.paired_bs and args.paired_ar:
        raise UsageError("--paired-bs and --paired-ar: expected one of them")


def run(args) -> int:
    from .paragraphs import read_lines
    from .translations import about_form, about_other_references, translations

    _check(args)
    references = [line.rstrip() for line in read_lines(args.references)]
    for message in filter(None, (about_form(args.references, references), _about_words(args, references))):
        print(message, file=sys.stderr)
    systems = {}
    for path in args.hypotheses:
        if any(os.path.samefile(path, other) for other in systems):  # under another name perhaps
            continue
        systems[path] = [line.rstrip() for line in translations(path, args.remove_bpe, args.lines)]
        if len(systems[path]) != len(references) or not references:
            raise CommandError(f"{path} has {len(systems[path])} translations, {args.references} {len(references)}")
        if other := about_other_references(path, references):
            print(other, file=sys.stderr)
        if os.path.samefile(path, args.references):
            print(f"{path} is the file of --references, which is scored against itself", file=sys.stderr)
    if (len(systems) > 1) != (args.paired_bs or args.paired_ar):
        raise UsageError("--paired-bs or --paired-ar compares --hypotheses of two or more different files")
    if len(systems) > 1:
        _compare(args, systems, references)
    else:
        _score(args, systems[args.hypotheses[0]], references)
    return 0
