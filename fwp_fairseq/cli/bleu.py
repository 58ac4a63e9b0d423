"""Scores translations with sacreBLEU against raw references, and prints each score with its signature.

  fwp bleu --hypotheses runs/a/generate-test.txt --references test.de --metrics bleu chrf ter --confidence
  fwp bleu --hypotheses a.txt --references test.zh --tokenize zh --metrics bleu chrf --chrf-word-order 2
  fwp bleu --hypotheses a.txt b.txt c.txt --references test.de --paired-bs

--hypotheses is plain detokenised text, or the output of fairseq-generate, which is detected by its H- and D- lines. Of
such output the D- lines are scored, or the H- lines if there are no D- lines, in the order of their ids, and
SentencePiece's pieces are joined. The references are raw text, one sentence per line, or a .gz file of it. Do not use
fairseq's T- lines, which show <<unk>>. The flags of a metric are sacreBLEU's own, and so are their defaults (BLEU:
cased, 13a).

For the tokenised BLEU of multi-bleu.perl and fairseq-score, compare the tokens before any detokenisation with those of
the references: --lines H --references TOKENS --tokenize none --smooth-method none --force

Several systems are compared by one of sacreBLEU's paired tests, with the first system as the baseline. The p-value is
that of the hypothesis that a system and the baseline are equally good; * marks those below 0.05.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import CommandError, UsageError

_SAMPLES = {"bs": 1000, "ar": 10000}  # sacreBLEU's own


def add_arguments(parser) -> None:
    parser.add_argument("--hypotheses", required=True, nargs="+", metavar="FILE", help="one file per system")
    parser.add_argument("--references", required=True, metavar="FILE")
    parser.add_argument("--metrics", "-m", nargs="+", choices=["bleu", "chrf", "ter"], default=["bleu"])
    parser.add_argument(
        "--compound-split",
        nargs="?",
        const="de",
        metavar="LANGUAGE",
        help="also print tokenised BLEU with compounds split, as papers on WMT14 reported; LANGUAGE selects the rules "
        "of Moses's tokenizer (default: de)",
    )
    parser.add_argument(
        "--lines",
        choices=["D", "H"],
        help="which lines of fairseq-generate to score: D, detokenised, or H, before the detokenisation (default: D if "
        "there are any, else H)",
    )
    parser.add_argument("--remove-bpe", action="store_true", help="join the pieces of subword-nmt (word@@ )")
    parser.add_argument(
        "--confidence",
        action="store_true",
        help="also print the mean and 95%% confidence interval, by bootstrap resampling",
    )
    parser.add_argument(
        "--confidence-n", type=int, default=1000, metavar="N", help="bootstrap resamples (default: 1000)"
    )
    paired = parser.add_mutually_exclusive_group()
    paired.add_argument("--paired-bs", action="store_true", help="compare with the first by paired bootstrap")
    paired.add_argument("--paired-ar", action="store_true", help="compare with the first by approximate randomization")
    parser.add_argument("--paired-n", type=int, metavar="N", help="samples of the test (default: bs 1000, ar 10000)")
    parser.add_argument("--seed", type=int, default=12345, metavar="N", help="resampling seed (default: 12345)")
    _add_metric_arguments(parser)
    parser.add_argument("--width", "-w", type=int, default=2, metavar="N", help="decimals (default: 2)")
    parser.add_argument("--json", action="store_true", help="print sacreBLEU's own JSON")


def _add_metric_arguments(parser) -> None:
    """Adds sacreBLEU's flags, spelt as sacreBLEU does, and without defaults, which are sacreBLEU's too.

    Each ``dest`` is the name of the metric followed by the argument of its class.
    """
    bleu = parser.add_argument_group("BLEU")
    bleu.add_argument("--tokenize", "-tok", dest="bleu_tokenize", metavar="NAME", help="13a, intl, zh, char, none, ...")
    bleu.add_argument("--lowercase", "-lc", dest="bleu_lowercase", **_FLAG, help="ignore case")
    bleu.add_argument("--smooth-method", "-s", dest="bleu_smooth_method", choices=["none", "floor", "add-k", "exp"])
    bleu.add_argument("--smooth-value", "-sv", dest="bleu_smooth_value", type=float, metavar="X", help="floor, add-k")
    bleu.add_argument("--force", dest="bleu_force", **_FLAG, help="do not warn about tokenised text")
    chrf = parser.add_argument_group("chrF")
    chrf.add_argument("--chrf-char-order", "-cc", type=int, metavar="N", help="largest order of character n-grams")
    chrf.add_argument(
        "--chrf-word-order", "-cw", type=int, metavar="N", help="largest order of word n-grams; 2 is chrF++"
    )
    chrf.add_argument("--chrf-beta", type=int, metavar="N", help="weight of recall")
    chrf.add_argument("--chrf-whitespace", **_FLAG, help="count whitespace as characters")
    chrf.add_argument("--chrf-lowercase", **_FLAG, help="ignore case")
    chrf.add_argument("--chrf-eps-smoothing", **_FLAG, help="smooth as chrF++.py, NLTK and Moses do")
    ter = parser.add_argument_group("TER")
    ter.add_argument("--ter-case-sensitive", **_FLAG, help="respect case")
    ter.add_argument("--ter-asian-support", **_FLAG, help="treat Asian characters as words")
    ter.add_argument("--ter-no-punct", **_FLAG, help="remove punctuation")
    ter.add_argument("--ter-normalized", **_FLAG, help="normalise and tokenise first")


_FLAG = {"action": "store_true", "default": None}


def _options(args, metric: str) -> dict:
    """The arguments of the metric's class that the user gave."""
    prefix = f"{metric}_"
    given = {name.removeprefix(prefix): value for name, value in vars(args).items() if name.startswith(prefix)}
    return {name: value for name, value in given.items() if value is not None}


def _metrics(args) -> dict:
    try:
        from sacrebleu.metrics import BLEU, CHRF, TER
    except ImportError as error:
        raise CommandError(f"{error}; pip install 'sacrebleu>=2.3'") from None
    if args.bleu_tokenize not in (None, *BLEU.TOKENIZERS):
        raise UsageError(f"--tokenize {args.bleu_tokenize}: expected one of {', '.join(map(str, BLEU.TOKENIZERS))}")
    classes, found = {"bleu": BLEU, "chrf": CHRF, "ter": TER}, {}
    for name in args.metrics:
        try:
            found[name] = classes[name](**_options(args, name))
        except (ImportError, RuntimeError, OSError) as error:  # the tokenizer needs another package or a download
            raise CommandError(f"{'--tokenize ' * (name == 'bleu')}{args.bleu_tokenize or name}: {error}") from None
    if args.compound_split is not None:
        try:
            from .compound_split import LANGUAGES, CompoundSplitBLEU
        except ImportError as error:
            raise CommandError(f"--compound-split: {error}; pip install sacremoses") from None
        if args.compound_split not in LANGUAGES:
            raise UsageError(f"--compound-split {args.compound_split}: expected one of {', '.join(LANGUAGES)}")
        found["compound split"] = CompoundSplitBLEU(args.compound_split)
    return found


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Sets sacreBLEU's seed, which it takes from the environment only, within the block."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        del os.environ["SACREBLEU_SEED"]
        if before is not None:
            os.environ["SACREBLEU_SEED"] = before


def _check_arguments(args) -> None:
    """Raises UsageError for flags that contradict each other, have no effect, or are out of range."""
    paired = args.paired_bs or args.paired_ar
    if paired and len(args.hypotheses) < 2:
        raise UsageError("--paired-bs and --paired-ar compare systems: give --hypotheses two files or more")
    if args.paired_n is not None and not paired:
        raise UsageError("--paired-n goes with --paired-bs or --paired-ar")
    for flag, value, least in (("--confidence-n", args.confidence_n, 2), ("--paired-n", args.paired_n, 1)):
        if value is not None and value < least:
            raise UsageError(f"{flag} {value}: expected {least} or more")
    for metric in ("bleu", "chrf", "ter"):
        if metric not in args.metrics and (unused := _options(args, metric)):
            name = next(iter(unused)).replace("_", "-")
            flag = f"--{name}" if metric == "bleu" else f"--{metric}-{name}"
            raise UsageError(f"{flag} goes with --metrics {metric}")
    if args.bleu_smooth_value is not None and args.bleu_smooth_method not in ("floor", "add-k"):
        raise UsageError("--smooth-value goes with --smooth-method floor or add-k")
    for flag, value in (("--chrf-char-order", args.chrf_char_order), ("--chrf-beta", args.chrf_beta)):
        if value is not None and value < 1:
            raise UsageError(f"{flag} {value}: expected 1 or more")
    if args.chrf_word_order is not None and args.chrf_word_order < 0:
        raise UsageError(f"--chrf-word-order {args.chrf_word_order}: expected 0 or more")
    if args.seed < 1:
        raise UsageError(f"--seed {args.seed}: expected 1 or more, sacreBLEU takes 0 for no seed")
    for path in args.hypotheses:
        if args.hypotheses.count(path) > 1:
            raise UsageError(f"--hypotheses {path} is given more than once")


def _scored(args, systems: dict[str, list[str]], references: list[str]) -> list[dict]:
    """One entry per system: its name, and each score in sacreBLEU's text and JSON."""
    found = []
    for name, hypotheses in systems.items():
        texts, values = [], []
        for metric in _metrics(args).values():
            samples = args.confidence_n if args.confidence else 1
            score = metric.corpus_score(hypotheses, [references], n_bootstrap=samples)
            signature = metric.get_signature().format()
            texts.append(score.format(args.width, signature=signature))
            values.append(json.loads(score.format(args.width, signature=signature, is_json=True)))
        found.append({"system": name, "texts": texts, "values": values})
    return found


def _compared(args, systems: dict[str, list[str]], references: list[str]) -> list[dict]:
    """One entry per system, the baseline first: its name, and for each metric the result of the paired test."""
    from sacrebleu.significance import PairedTest

    kind = "bs" if args.paired_bs else "ar"
    test = PairedTest(
        list(systems.items()),
        _metrics(args),
        [references],
        test_type=kind,
        n_samples=args.paired_n or _SAMPLES[kind],
        n_ar_confidence=args.confidence_n if args.confidence else -1,
    )
    signatures, results = test()
    names = results.pop("System")
    for baseline, *others in results.values():
        for other in others:
            if other.score == baseline.score:  # sacreBLEU counts the differences above 0, not those of at least 0
                other.p_value = 1.0
    return [
        {"system": name}
        | {metric: _plain(of[number]) | {"signature": str(signatures[metric])} for metric, of in results.items()}
        for number, name in enumerate(names)
    ]


def _plain(result) -> dict:
    # Converts numpy's numbers, which json cannot write.
    return {field: None if value is None else float(value) for field, value in vars(result).items()}


def _text_of_comparison(found: list[dict], width: int) -> str:
    lines = []
    for number, system in enumerate(found):
        lines.append(f"{system['system']}{'' if number else ' (baseline)'}")
        for metric, result in system.items():
            if metric == "system":
                continue
            line = f"  {metric}|{result['signature']} = {result['score']:.{width}f}"
            if result["mean"] is not None:
                line += f" (μ = {result['mean']:.{width}f} ± {result['ci']:.{width}f})"
            if result["p_value"] is not None:
                line += f" (p = {result['p_value']:.4f}){'*' if result['p_value'] < 0.05 else ''}"
            lines.append(line)
    return "\n".join(lines)


def run(args) -> int:
    _check_arguments(args)
    _metrics(args)  # reports a missing package before any file is read
    from .translations import lines, translations

    references = [line.rstrip() for line in lines(args.references)]
    systems = {}
    for path in args.hypotheses:
        systems[path] = [line.rstrip() for line in translations(path, args.remove_bpe, args.lines)]
        if len(systems[path]) != len(references) or not references:
            raise CommandError(f"{path} has {len(systems[path])} translations, {args.references} {len(references)}")
    with _seeded(args.seed):
        if args.paired_bs or args.paired_ar:
            found = _compared(args, systems, references)
            print(json.dumps(found, indent=1) if args.json else _text_of_comparison(found, args.width))
            return 0
        found = _scored(args, systems, references)
    if len(found) == 1:
        print(json.dumps(found[0]["values"], indent=1) if args.json else "\n".join(found[0]["texts"]))
    elif args.json:
        print(json.dumps([{"system": one["system"], "scores": one["values"]} for one in found], indent=1))
    else:
        print("\n".join("\n  ".join([one["system"], *one["texts"]]) for one in found))
    return 0
