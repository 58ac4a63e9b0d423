"""Scores translations with sacreBLEU (cased, 13a), against raw references, and prints score and signature.

--hypotheses is plain detokenised text, or what fairseq-generate wrote (detected by its H- and D- lines): then the
D- lines are taken, the H- lines where there are none, in the order of their ids, and SentencePiece's pieces are joined.
The references are raw text, one line a sentence, or .gz of it; never fairseq's T- lines, which show <<unk>>.
"""

import json
import re
from pathlib import Path

from .errors import CommandError, UsageError

_GENERATED = re.compile(r"([HD])-(\d+)\t([^\t]*)\t(.*)", re.DOTALL)


def add_arguments(parser) -> None:
    parser.add_argument("--hypotheses", required=True, metavar="FILE")
    parser.add_argument("--references", required=True, metavar="FILE")
    parser.add_argument("--metrics", nargs="+", choices=["bleu", "chrf", "ter"], default=["bleu"])
    parser.add_argument("--remove-bpe", action="store_true", help="join the pieces of subword-nmt (word@@ )")
    parser.add_argument("--width", type=int, default=2, metavar="N", help="decimals (default: 2)")
    parser.add_argument("--json", action="store_true", help="for machines: sacreBLEU's own JSON")


def _lines(path: str) -> list[str]:
    from sacrebleu.utils import smart_open

    try:
        with smart_open(path) as file:  # as sacreBLEU's own command reads: only \n ends a line
            return [line.removesuffix("\n") for line in file]
    except (UnicodeDecodeError, EOFError) as error:
        raise CommandError(f"{path}: not UTF-8 text: {error}") from None


def _join_pieces(line: str) -> str:
    return line.replace(" ", "").replace("▁", " ").strip()


def generated_translations(lines: list[str], remove_bpe: bool = False) -> list[str] | None:
    """The translations in a fairseq-generate output, ordered by id; None when it is not one.

    Raises CommandError when ids are missing or occur twice, or when subword-nmt's marks would be scored.
    """
    found: dict[str, dict[int, str]] = {"D": {}, "H": {}}
    for line in lines:
        if match := _GENERATED.fullmatch(line):
            kind, number, text = match[1], int(match[2]), match[4]
            if number in found[kind]:
                raise CommandError(f"{kind}-{number} occurs twice; decode with --nbest 1, and into an empty file")
            found[kind][number] = text
    translations = found["D"] or found["H"]
    if not translations:
        return None
    missing = sorted(set(range(max(translations) + 1)) - translations.keys())
    if missing:  # fairseq leaves out a last batch that does not fill its default multiple of 8
        raise CommandError(
            f"{len(missing)} of {max(translations) + 1} translations are missing, the first is {missing[0]}; "
            "decode with --required-batch-size-multiple 1"
        )
    texts = [translations[number] for number in range(len(translations))]
    if remove_bpe:
        texts = [re.sub(r"@@( |$)", "", text) for text in texts]
    elif any(re.search(r"@@( |$)", text) for text in texts):
        raise CommandError(
            "the translations hold subword-nmt pieces (word@@ ): add --remove-bpe, here or while decoding"
        )
    return [_join_pieces(text) for text in texts] if any("▁" in text for text in texts) else texts


def run(args) -> int:
    try:
        from sacrebleu.metrics import BLEU, CHRF, TER
    except ImportError as error:
        raise CommandError(f"{error}; pip install 'sacrebleu>=2.3'") from None
    for path in (args.hypotheses, args.references):
        if not Path(path).is_file():
            raise CommandError(f"{path}: no such file")
    lines, references = _lines(args.hypotheses), _lines(args.references)
    hypotheses = generated_translations(lines, args.remove_bpe)
    if hypotheses is None:
        if args.remove_bpe:
            raise UsageError(f"--remove-bpe is for fairseq-generate output, {args.hypotheses} has no H- or D- line")
        hypotheses = lines
    if len(hypotheses) != len(references) or not references:
        raise CommandError(f"{args.hypotheses} has {len(hypotheses)} translations, {args.references} {len(references)}")
    hypotheses, references = ([line.rstrip() for line in lines] for lines in (hypotheses, references))
    results = []
    for name in args.metrics:
        metric = {"bleu": BLEU, "chrf": CHRF, "ter": TER}[name]()
        score = metric.corpus_score(hypotheses, [references])
        results.append(score.format(args.width, signature=metric.get_signature().format(), is_json=args.json))
    print(json.dumps([json.loads(result) for result in results], indent=1) if args.json else "\n".join(results))
    return 0
