"""Computes the perplexity per word of a model of subwords or characters from the output of fairseq-eval-lm.

  fairseq-eval-lm data-bin --user-dir "$(fwp path)" --path checkpoint_best.pt --gen-subset test ... | tee test.log
  fwp ppl test.log --text test.txt

fairseq reports perplexity per piece, which cannot be compared between models with different pieces. Perplexity per word
is 2 ** (bits of the whole text / words). Words are separated by white space in the text before encoding, and the end of
each line counts as a word because it is predicted, too. Several logs are treated as the parts of one evaluation
(--num-shards).
"""

import json
import math
import re
import sys

from .errors import CommandError
from .paragraphs import read_lines

_TOKENS = re.compile(r"Evaluated ([\d,]+) tokens in ")
_LOSS = re.compile(r"Loss \(base 2\): (-?[\d.]+|nan|inf), Perplexity")
_SKIPPED = re.compile(r"([\d,]+) samples have invalid sizes and will be skipped, max_positions=(\d+)")
_MERGED = re.compile(r"'post_process': '([^']+)'")


def add_arguments(parser) -> None:
    parser.add_argument("logs", nargs="+", metavar="LOG", help="output of fairseq-eval-lm")
    parser.add_argument(
        "--text",
        required=True,
        metavar="FILE",
        help="the evaluated text before BPE or SentencePiece; may be a .gz file",
    )
    parser.add_argument("--json", action="store_true", help="print JSON; null stands for an infinite number")


def _read_log(path: str) -> tuple[int, float]:
    """Returns the number of tokens of one evaluation and the bits lost on them."""
    log = "\n".join(read_lines(path))
    merged, tokens, losses = _MERGED.search(log), _TOKENS.findall(log), _LOSS.findall(log)
    if merged:
        raise CommandError(
            f"{path}: fairseq-eval-lm counted words itself (--post-process {merged[1]}): expected a log without it"
        )
    if skipped := _SKIPPED.search(log):
        raise CommandError(
            f"{path}: fairseq-eval-lm skipped {skipped[1]} samples of more than {skipped[2]} tokens; expected the "
            f"whole text, as with --tokens-per-sample {skipped[2]} and without --sample-break-mode eos"
        )
    if len(tokens) != 1 or len(losses) != 1:
        raise CommandError(
            f"{path}: expected the log of one fairseq-eval-lm, with a line 'Evaluated N tokens' and one "
            f"'Loss (base 2)', actual {len(tokens)} and {len(losses)} of them"
        )
    count = int(tokens[0].replace(",", ""))
    return count, count * float(losses[0])


def _perplexity(bits: float) -> float:
    # Infinite for lines of thousands of characters without a space.
    return math.inf if bits >= sys.float_info.max_exp else 2**bits


def run(args) -> int:
    tokens, bits = (sum(numbers) for numbers in zip(*map(_read_log, args.logs), strict=True))
    text = read_lines(args.text)
    lines = len(text)
    words = sum(len(line.split()) for line in text) + lines  # a line's end counts as a word
    if not tokens or not words or tokens < words:
        raise CommandError(
            f"{', '.join(args.logs)}: {tokens:,} tokens were evaluated, expected at least the {words:,} words and line "
            f"ends of {args.text}; is it the text of that evaluation?"
        )
    measures = {
        "bits_per_token": bits / tokens,
        "tokens": tokens,
        "words": words,
        "lines": lines,
        "perplexity": _perplexity(bits / tokens),
        "word_perplexity": _perplexity(bits / words),
    }
    if args.json:
        print(json.dumps({name: x if math.isfinite(x) else None for name, x in measures.items()}))
        return 0
    print(f"{tokens:,} tokens, {measures['bits_per_token']:.4f} bits each: perplexity {measures['perplexity']:.2f}")
    print(f"{words:,} words, {lines:,} line ends among them: word perplexity {measures['word_perplexity']:.2f}")
    return 0
