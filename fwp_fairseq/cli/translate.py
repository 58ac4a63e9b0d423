"""Translates the lines of standard input with a trained model, each line to one line of standard output.

  fwp translate runs/checkpoints < text.en > text.de
  fwp translate checkpoint_best.pt --document < page.en.txt > page.de.txt

MODEL is a checkpoint, a folder with checkpoint_best.pt or checkpoint_last.pt, or that of fwp train. Dictionaries
(dict.LANGUAGE.txt) are looked for beside it, in the folder above and where the training had them; the SentencePiece
model (*.model) beside dictionaries and checkpoint. Empty lines stay empty. With sinusoidal positions lines may have up
to 100,000 tokens; what is longer than the sources of the training, or cut, is said at the end. fairseq-interactive has
every other option.
"""

import math
import sys
from pathlib import Path

from .errors import UsageError, refuse_below
from .paragraphs import joined, lines_of, paragraphs, windows
from .plugin import import_plugin

_LINES = 2000  # are read, translated and written at a time
_WINDOW = 150


def add_arguments(parser) -> None:
    parser.add_argument("model", metavar="MODEL", type=Path)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the dictionaries")
    parser.add_argument("--spm", metavar="FILE", help="SentencePiece model; none if the lines are pieces already")
    parser.add_argument("--beam", type=int, default=4, metavar="N", help="(default: 4)")
    parser.add_argument("--lenpen", type=float, default=1.0, metavar="X", help="above 1 favours length (default: 1)")
    parser.add_argument(
        "--max-len-a", type=float, default=2.0, metavar="A",
        help="a translation has at most A times the tokens of the longest source in its batch, plus B (default: 2)",
    )  # fmt: skip
    parser.add_argument("--max-len-b", type=int, default=50, metavar="B", help="see --max-len-a (default: 50)")
    parser.add_argument(
        "--nbest", type=int, default=1, metavar="N",
        help="print N translations of each line, with its number from 0 on and their scores (default: 1, without)",
    )  # fmt: skip
    parser.add_argument(
        "--alignments", action="store_true",
        help="after each translation, print a tab and pairs of aligned pieces, SOURCE-TARGET, counted from 0",
    )  # fmt: skip
    parser.add_argument(
        "--document", action="store_true", help="lines between empty ones are a paragraph, which becomes one line"
    )
    parser.add_argument(
        "--window", type=int, metavar="N",
        help=f"with --document, words of a paragraph translated at a time (default: {_WINDOW})",
    )  # fmt: skip
    parser.add_argument("--max-tokens", type=int, default=4000, metavar="N", help="tokens of a batch (default: 4000)")
    parser.add_argument(
        "--source-window", type=int, metavar="N",
        help="softmax cross-attention reads only N positions of its source in a step, around those of the step before, "
        "so that it takes the same time at any length (default: what the model says, or all)",
    )  # fmt: skip
    parser.add_argument("--int8", action="store_true", help="large linear layers in eight bits, on a CPU")
    parser.add_argument("--cpu", action="store_true", help="even where there is a GPU")


def _check(args) -> None:
    refuse_below(args, 1, "--beam", "--nbest", "--window", "--source-window", "--max-tokens", "--max-len-b")
    if not 0 <= args.max_len_a < math.inf:
        raise UsageError(f"--max-len-a {args.max_len_a:g}: expected a finite number, 0 or more")
    if not math.isfinite(args.lenpen):
        raise UsageError(f"--lenpen {args.lenpen:g}: expected a finite number")
    if args.nbest > args.beam:
        raise UsageError(f"--nbest {args.nbest}: expected at most --beam {args.beam}")
    if args.document and (args.nbest > 1 or args.alignments):
        raise UsageError("--document joins the best translations of windows: without --nbest and --alignments")
    if args.window is not None and not args.document:
        raise UsageError(f"--window {args.window} cuts the paragraphs of --document; expected both or none")


def _translator(args):
    import torch

    from .translator import Translator, checkpoint_in

    options = {
        "beam": args.beam, "nbest": args.nbest, "lenpen": args.lenpen, "max_len_a": args.max_len_a,
        "max_len_b": args.max_len_b, "print_alignment": "hard" if args.alignments else None,
    }  # fmt: skip
    device = "cpu" if args.cpu or not torch.cuda.is_available() else "cuda"
    return Translator(
        checkpoint_in(args.model), args.data, args.spm, options, args.max_tokens, args.int8, args.source_window, device
    )  # fmt: skip


class _Cut:
    """Counts the sources that are longer than a model with learned positions can read."""

    def __init__(self, longest: int):
        self.longest, self.count = longest, 0

    def __call__(self, tokens):
        if len(tokens) <= self.longest:
            return tokens
        self.count += 1
        return tokens.new_tensor([*tokens[: self.longest - 1].tolist(), int(tokens[-1])])


def run(args) -> int:
    _check(args)
    import_plugin()
    translator = _translator(args)
    from tqdm import tqdm

    texts = lines_of(sys.stdin.buffer.read(), "standard input")
    if args.document:
        parts = [windows(text, args.window or _WINDOW) for text in paragraphs(texts)]
    else:
        parts = [[text] for text in texts]
    parts = [[part for part in of if part.strip()] for of in parts]
    cut = _Cut(translator.longest)
    with tqdm(total=sum(map(len, parts)), unit="line", disable=None, file=sys.stderr) as bar:
        for first in range(0, len(parts), _LINES):
            some = parts[first : first + _LINES]
            encoded = [[tokens for part in of if len(tokens := translator.encode(part)) > 1] for of in some]
            translated = iter(translator.translate([cut(tokens) for of in encoded for tokens in of], bar.update))
            for number, of in enumerate(encoded, first):
                _write(number, [next(translated) for _ in of], args)
    if cut.count:
        print(f"sources cut at {cut.longest} tokens, the positions of the model: {cut.count}", file=sys.stderr)
    return 0


def _write(number: int, translated: list, args) -> None:
    if args.nbest == 1:
        aligned = "".join(f"\t{of[0].alignment}" for of in translated) if args.alignments else ""
        print(joined(of[0].text for of in translated) + aligned)
        return
    for one in (one for of in translated for one in of):
        print(f"{number}\t{one.score:.4f}\t{one.text}" + (f"\t{one.alignment}" if args.alignments else ""))
