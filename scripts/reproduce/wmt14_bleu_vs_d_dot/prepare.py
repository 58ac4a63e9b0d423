"""Prepares WMT14 English-German for run.py, as fairseq's examples/translation/prepare-wmt14en2de.sh does.

The training data are Europarl v7, Common Crawl and News Commentary v12 (or v9, the version of 2014). Validation uses
newstest2013, as in the paper, and the test set is newstest2014 with all its 3003 sentences. As with Moses's
scripts, sacremoses normalises and tokenises text (splitting hyphens), and training pairs are cleaned. SentencePiece
learns 32,000 joint BPE pieces on the tokens of every second line.

After an interruption the same command continues; a download goes on after its last byte if the server supports this.
statmt.org publishes no checksums. Archives are checked by gzip's own checksum and by the published numbers of lines,
and the archive of the test set by the md5 that sacreBLEU expects. The sha256 of the first download is kept in
archives/archives.sha256.json, and later downloads must have the same.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from scripts.common import commands, packages, process, program
from scripts.common.folder import Folder
from scripts.common.progress import new_bar, on_terminal
from scripts.common.steps import Steps
from scripts.data.corpus import SENTENCEPIECE

from . import archives, preprocessing
from .archives import LANGUAGES

OUT = Path("runs/wmt14_bleu_vs_d_dot/wmt14/data")
STEPS = ("download", "extract", "tokenise", "pieces", "encode", "preprocess")
PAIRS = 4_590_000  # with News Commentary v12, rounded

# Extrapolated from 10,000 pairs on one core, which was tokenised at 9,700 lines/s and split into pieces at 18,700
# pairs/s. The sizes of the archives, the time for learning pieces and for binarising, and the memory are guesses: the
# whole preparation has not been run.
COST = f"""\
cost (extrapolated, see prepare.py)
  disk        7 GB: archives 1.8, text 1.2, tokens 1.2, pieces 1.7, binarised 0.6
  time        a download of 1.8 GB, then about 1.5 core-hours, half of which are shared by --workers N processes
  memory      about 8 GB while the BPE model is learnt
  training    afterwards, about 290 GPU-hours on V100s for each row (4 days on 3 of them: Schlag et al. 2021,
              Appendix E), and 10 GB of checkpoints
about {PAIRS:,} pairs, {preprocessing.VOCABULARY:,} joint pieces"""


def parse(argv: list[str]) -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    prog = "scripts/reproduce/wmt14_bleu_vs_d_dot/prepare.sh"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__, epilog=COST, formatter_class=layout)
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"folder of the corpus (default: {OUT})")
    parser.add_argument(
        "--news-commentary", choices=list(archives.NEWS_COMMENTARY), default="v12", help="version (default: v12)"
    )
    parser.add_argument(
        "--workers", type=int, default=process.cores(), metavar="N", help="processes (default: one for each core)"
    )
    parser.add_argument(
        "--any-size", action="store_true", help="accept texts that do not have the published number of lines"
    )
    parser.add_argument("--dry-run", action="store_true", help="only print the cost, the downloads and the commands")
    options = parser.parse_args(argv)
    if options.workers < 1:
        parser.error(f"--workers {options.workers}: expected 1 or more")
    return options


def preprocess(out: Path, workers: int) -> list[str]:
    return [
        "fairseq-preprocess",
        *("--source-lang", "en", "--target-lang", "de", "--joined-dictionary"),
        *("--trainpref", f"{out}/bpe/train", "--validpref", f"{out}/bpe/newstest2013"),
        *("--testpref", f"{out}/bpe/newstest2014", "--destdir", f"{out}/bin", "--workers", str(workers)),
    ]


def plan(options) -> str:
    needed = [*archives.training(options.news_commentary), archives.DEV, archives.TEST]
    urls = "\n".join(f"  {archive.url}" for archive in needed)
    return (
        f"{COST}\n\ndownloads into {options.out}/archives, unless they are there already:\n{urls}\n\n"
        f"{commands.printed(preprocess(options.out, options.workers))}"
    )


class _LineProgress:
    """Shows the progress of a step: a bar on a terminal, elsewhere a line for each tenth of the work."""

    def __init__(self, total: int, what: str):
        self.bar = new_bar(total, "line", what) if on_terminal() else None
        self.total, self.what, self.count = total, what, 0

    def __call__(self) -> None:
        self.count += 1
        if self.bar is not None:
            self.bar.update()
        elif self.total >= 10 and self.count % (self.total // 10) == 0:
            print(f"  {self.what}: {self.count:,} of {self.total:,} lines", flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _tokenise(options, sets: dict[str, list[str]], counts: dict[str, int]) -> dict:
    for language in LANGUAGES:
        for name, sources in sets.items():
            tick = _LineProgress(sum(counts[text] for text in sources), f"{name}.{language}")
            paths = [options.out / "raw" / f"{text}.{language}" for text in sources]
            target = options.out / "tok" / f"{name}.{language}"
            preprocessing.tokenise(paths, target, language, options.workers, name == "train", tick)
            tick.close()
    return {}


def _encode(out: Path, sets: dict[str, list[str]], counts: dict[str, int]) -> dict:
    pairs = {}
    for name, sources in sets.items():
        tick = _LineProgress(sum(counts[text] for text in sources), f"{name}, pieces")
        source = {language: out / "tok" / f"{name}.{language}" for language in LANGUAGES}
        target = {language: out / "bpe" / f"{name}.{language}" for language in LANGUAGES}
        pairs[name] = preprocessing.encode(out / SENTENCEPIECE, source, target, clean=name == "train", tick=tick)
        tick.close()
    read, kept = pairs["train"]
    print(f"  {kept:,} of {read:,} training pairs kept")
    return {"pairs": kept}


def prepare(options) -> None:
    """Runs the steps of the preparation that are not finished. Raises RecipeError if one fails."""
    packages.require()
    out, steps = options.out, Steps(len(STEPS))
    training, tests = archives.training(options.news_commentary), [archives.DEV, archives.TEST]
    needed = [*training, *tests]
    names = [text for archive in training for text in archive.members]
    sets = {"train": names, "newstest2013": ["newstest2013"], "newstest2014": ["newstest2014"]}
    folder = Folder(out, STEPS)

    def files(kind: str, texts: list[str]) -> list[Path]:
        return [out / kind / f"{text}.{language}" for text in texts for language in LANGUAGES]

    def fetch() -> dict:
        return {a.file: archives.fetch(a, out / "archives", lambda text: print(f"  {text}")) for a in needed}

    def extract() -> dict:
        found = {}
        for archive in needed:
            found |= archives.extract(archive, out / "archives", out / "raw", options.any_size)
        print("".join(f"  {text}: {count:,} pairs\n" for text, count in found.items()), end="")
        return {"lines": found}

    def learn() -> dict:
        preprocessing.learn(files("tok", ["train"]), out / SENTENCEPIECE, preprocessing.VOCABULARY)
        return {}

    command = preprocess(out, options.workers)

    def binarise() -> dict:
        shutil.rmtree(out / "bin", ignore_errors=True)
        process.run(command, out / "preprocess.log")
        return {}

    with folder.locked():
        folder.claim({"news commentary": options.news_commentary, "vocabulary": preprocessing.VOCABULARY})
        done = [out / "archives" / archive.file for archive in needed]
        steps.run(folder, "download", "download and check the archives", [a.url for a in needed], done, fetch)
        raw = files("raw", [text for sources in sets.values() for text in sources])
        counts = steps.run(folder, "extract", "extract the texts", {}, raw, extract)["lines"]
        tok, bpe = files("tok", list(sets)), files("bpe", list(sets))
        title = "normalise, tokenise"
        steps.run(folder, "tokenise", title, {}, tok, lambda: _tokenise(options, sets, counts))
        steps.run(folder, "pieces", f"learn {preprocessing.VOCABULARY:,} pieces", {}, [out / SENTENCEPIECE], learn)
        steps.run(folder, "encode", "split into pieces, clean", {}, bpe, lambda: _encode(out, sets, counts))
        steps.run(folder, "preprocess", "binarise", command, [out / "bin/dict.de.txt"], binarise, command)
    print(f"{out} is ready; continue with {Path(__file__).parent.relative_to(process.ROOT)}/run.py --preset wmt14")


def main(argv: list[str]) -> int:
    options = parse(argv)
    if options.out != OUT:
        options.out = program.from_root(options.out)
    print(plan(options), flush=True)
    if options.dry_run:
        return 0
    return program.run(lambda: prepare(options), "continues")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
