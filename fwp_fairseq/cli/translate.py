"""Translates standard input to standard output with a trained model, line by line.

  fwp translate runs/checkpoints < text.en > text.de
  fwp translate checkpoint_best.pt --document < page.en.txt > page.de.txt

MODEL is a checkpoint, a folder with checkpoint_best.pt or checkpoint_last.pt, or a folder made by fwp train.
Dictionaries (dict.LANGUAGE.txt) are looked up in the folder of the checkpoint, in its parent and where they were in
training; the SentencePiece model (*.model) is looked up next to the dictionaries and the checkpoint. Empty lines stay
empty. Lines are translated as they arrive, at most 2,000 at a time: a line typed in a terminal is translated at once,
and a text can have any length. With sinusoidal positions, lines may have up to 100,000 tokens. At the end, the command
says how many lines were longer than those in training, and how many translations were cut off. For other options of
decoding, use fairseq-interactive.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from .blocks import blocks
from .errors import UsageError, refuse_outside
from .paragraphs import Passages, add_passage, gap
from .plugin import import_plugin
from .progress import SAY_EVERY_SECONDS

_PASSAGE = 150


def add_arguments(parser) -> None:
    parser.add_argument("model", metavar="MODEL", type=Path)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with the dictionaries")
    parser.add_argument("--spm", metavar="FILE", help="SentencePiece model; none if the input is already in pieces")
    parser.add_argument("--beam", type=int, default=4, metavar="N", help="beam size (default: 4)")
    parser.add_argument(
        "--lenpen", type=float, default=1.0, metavar="X",
        help="length penalty; values above 1 favour longer translations (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--max-len-a", type=float, default=2.0, metavar="A",
        help="limit a translation to A S + B tokens, where S is the longest source in its batch (default: 2)",
    )  # fmt: skip
    parser.add_argument("--max-len-b", type=int, default=50, metavar="B", help="see --max-len-a (default: 50)")
    parser.add_argument(
        "--nbest", type=int, default=1, metavar="N",
        help="print N translations of each line; N above 1 adds line numbers (from 0) and scores (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--alignments", action="store_true",
        help="print after each translation a tab and the aligned pieces, as pairs SOURCE-TARGET of positions from 0",
    )  # fmt: skip
    parser.add_argument(
        "--document", action="store_true",
        help="translate whole paragraphs: the lines between two empty lines become one line of output",
    )  # fmt: skip
    add_passage(parser, f"with --document, translate passages of at most N words at a time (default: {_PASSAGE})")
    parser.add_argument("--max-tokens", type=int, default=4000, metavar="N", help="tokens per batch (default: 4000)")
    parser.add_argument(
        "--source-window", type=int, metavar="N",
        help="let softmax cross-attention read only N source positions in each step, around those of the previous "
        "step, so that a step takes the same time for a source of any length (default: the model's setting)",
    )  # fmt: skip
    parser.add_argument(
        "--int8",
        action="store_true",
        help="compute large linear layers in int8, with one scale per position (CPU only)",
    )
    parser.add_argument("--cpu", action="store_true", help="use the CPU even if there is a GPU")


def _check(args) -> None:
    refuse_outside(args, 1, "--beam", "--nbest", "--passage", "--source-window", "--max-tokens", "--max-len-b")
    refuse_outside(args, 0, "--max-len-a")
    refuse_outside(args, -10, "--lenpen", most=10)  # so that length ** lenpen is a float32
    if args.nbest > args.beam:
        raise UsageError(f"--nbest {args.nbest}: expected at most --beam {args.beam}")
    if args.document and (args.nbest > 1 or args.alignments):
        raise UsageError("--document joins the best translations of passages: without --nbest and --alignments")
    if args.passage is not None and not args.document:
        raise UsageError(f"--passage {args.passage} cuts the paragraphs of --document; expected both or none")


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
    """Cuts the sources that are longer than the model can read, and counts them."""

    def __init__(self, longest: int):
        self.longest, self.count = longest, 0

    def __call__(self, tokens):
        if len(tokens) <= self.longest:
            return tokens
        self.count += 1
        return tokens.new_tensor([*tokens[: self.longest - 1].tolist(), int(tokens[-1])])


def _blocks(args) -> Iterator[list[tuple[str, bool]]]:
    """Yields texts to translate as they come, each with True if its translation ends a line of the output."""
    passages = Passages(args.passage or _PASSAGE)
    for lines in blocks(sys.stdin.buffer, "standard input"):
        yield list(passages.take(lines)) if args.document else [(line, True) for line in lines]
    yield list(passages.end())


class _Output:
    """Prints translations: parts of a line, until one ends it."""

    def __init__(self, args):
        self.args, self.number, self.line = args, 0, ""

    def write(self, hypotheses: list, ends: bool) -> None:
        """Prints the hypotheses of a text, best first; none for a text without tokens."""
        several = self.args.nbest > 1
        for hypothesis in hypotheses:
            aligned = f"\t{hypothesis.alignment}" if self.args.alignments else ""
            if several:
                print(f"{self.number}\t{hypothesis.score:.4f}\t{hypothesis.text}{aligned}")
            elif text := hypothesis.text.strip() + aligned:
                print(gap(self.line), text, sep="", end="")
                self.line = text
        if ends:
            print(end="" if several else "\n")
            self.number, self.line = self.number + 1, ""


def _bar():
    """Returns a progress bar; it writes few lines into a log file, and none in a short run."""
    from tqdm import tqdm

    seconds = 0.1 if sys.stderr.isatty() else SAY_EVERY_SECONDS
    # Without miniters=1, a thread of tqdm's writes a second line ten seconds after each.
    times = {"mininterval": seconds, "delay": seconds, "miniters": 1}
    return tqdm(unit="line", disable=sys.stdin.isatty(), file=sys.stderr, **times)


def run(args) -> int:
    _check(args)
    import_plugin()
    translator = _translator(args)
    cut, output = _Cut(translator.longest), _Output(args)
    with _bar() as bar:
        for block in _blocks(args):
            encoded = [(translator.encode(text) if text.strip() else (), ends) for text, ends in block]
            sources = [cut(tokens) for tokens, _ in encoded if len(tokens) > 1]
            translated = iter(translator.translate(sources, bar.update))
            for tokens, ends in encoded:
                output.write(next(translated) if len(tokens) > 1 else [], ends)
            sys.stdout.flush()
    if cut.count:
        print(f"sources cut at {cut.longest} tokens, the positions of the model: {cut.count}", file=sys.stderr)
    return 0
