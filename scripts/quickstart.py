"""The quick start: what a user does with texts of their own, done with Multi30k; scripts/quickstart.sh calls it."""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from scripts.common.arguments import Parser

PROGRAM = "scripts/quickstart.sh"
_SOFTMAX, _FURTHER = 7, 2  # minutes of the two trainings
_SMOKE = {"train": 400, "valid": 40, "test": 20}  # lines
_SMOKE_UPDATES = 12
DESCRIPTION = f"""\
Trains a small English-German Transformer with softmax attention on Multi30k (fwp train, {_SOFTMAX} minutes at most),
converts its decoder to fast weights (fwp convert), trains that on (fwp train --finetune-from,
{_FURTHER} minutes at most), compares the translations of the test set (fwp bleu, fwp table), and
translates a sentence (fwp translate). Sets up everything it needs. Every command is printed and can be copied; the same
command goes on after an interruption."""
EPILOG = """\
results, below runs/quickstart (or --out):
  texts/           Multi30k as `fwp train` takes it
  data/            pieces and binarised texts, which both trainings share
  softmax/         the softmax model: checkpoints, translations, curve.svg
  converted.pt     the same model with fast weights in the decoder
  fast-weights/    the converted model, trained on

examples:
  scripts/quickstart.sh
  scripts/quickstart.sh --prepare           only the environment and the texts
  scripts/quickstart.sh --texts corpus --source en --target de --out runs/en-de
                                            texts of your own, by `fwp train`; its options, such as
                                            --baseline --minutes 20, may follow (`fwp train --help`)

environment variables: FWP_DATA (folder with multi30k/, default ../shared/data; without it the data is downloaded),
OMP_NUM_THREADS (default: all cores, 8 at most), and those of scripts/environment.sh."""


_USAGE = f"""\
[--prepare] [--smoke] [--cpu] [--out DIR] [--help]
       {PROGRAM} --texts DIR --source LANGUAGE --target LANGUAGE --out DIR [OPTIONS OF FWP TRAIN]"""


def parse(argv: list[str]) -> argparse.Namespace:
    """Parses the options; quickstart.sh calls this before anything is installed."""
    parser = Parser(PROGRAM, DESCRIPTION, "", _USAGE, epilog=EPILOG)
    parser.add_argument("--prepare", action="store_true", help="prepare the texts, and train nothing")
    parser.add_argument("--smoke", action="store_true", help="a few lines and updates, to see that everything runs")
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")
    parser.add_argument("--out", type=Path, metavar="DIR", help="(runs/quickstart)")
    return parser.parse_args(argv)


def _fwp(*words: object, **keywords) -> None:
    words = [str(word) for word in words]
    print(f"\n$ fwp {shlex.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "fwp_fairseq", *words], check=True, **keywords)


def main(argv: list[str]) -> int:
    options = parse(argv)
    from scripts.common import program

    out = program.from_root(options.out) or Path("runs/quickstart")
    return program.run(lambda: _work(options, out), "continues: a training goes on from its last epoch")


def _work(options: argparse.Namespace, out: Path) -> int:
    from scripts.data import multi30k

    multi30k.write_parts(out / "texts", _SMOKE if options.smoke else None)
    if not options.prepare:
        try:
            _train_convert_and_train_on(options, out)
        except subprocess.CalledProcessError as error:
            return error.returncode
    return 0


def _train_convert_and_train_on(options: argparse.Namespace, out: Path) -> None:
    from scripts.common.commands import words_of
    from scripts.experiments.conversion.rows import WINDOW

    texts, converted = out / "texts", out / "converted.pt"
    common = ["--texts", texts, "--source", "en", "--target", "de", "--data", out / "data", *["--cpu"] * options.cpu]

    def limit(minutes: int) -> list:
        return ["--max-update", _SMOKE_UPDATES] if options.smoke else ["--minutes", minutes]

    softmax, fast = out / "softmax", out / "fast-weights"
    model = ["--arch", "fwp_transformer_tiny", *limit(_SOFTMAX), "--", "--fwp-feature-map", "softmax"]
    _fwp("train", *common, "--out", softmax, *model)
    best = softmax / "checkpoints/checkpoint_best.pt"
    _fwp("convert", "--input", best, "--output", converted, *words_of(WINDOW.flags))
    _fwp("train", *common, "--out", fast, "--finetune-from", converted, *limit(_FURTHER))
    hypotheses = [folder / "translations.de" for folder in (softmax, fast)]
    _fwp("bleu", "--hypotheses", *hypotheses, "--references", texts / "test.de", "--paired-bs")
    _fwp("table", "--results", out, "--references", texts / "test.de")
    sentence = "Two dogs are playing in the snow."
    print(f"\n$ echo '{sentence}' |", end="")
    _fwp("translate", fast, *["--cpu"] * options.cpu, input=f"{sentence}\n", text=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
