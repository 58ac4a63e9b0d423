"""Prepares the corpus of WMT14 or IWSLT14 as fairseq's examples/translation do.

wmt14 follows prepare-wmt14en2de.sh: the training data are Europarl v7, Common Crawl and News Commentary v12. Validation
uses newstest2013, as in the paper, and the test set is newstest2014 with all its 3003 sentences. SentencePiece learns
32,000 joint BPE pieces on the tokens of every second line.

iwslt14 follows prepare-iwslt14.sh: German-English talks in lower case, of which each 23rd pair is for validation, a
test set of 6750 sentences, and 10,000 joint BPE pieces.

sacremoses takes the place of Moses's scripts: it normalises and tokenises text. Training pairs are cleaned.

After an interruption the same command continues; a download goes on after its last byte if the server supports this.
Archives are checked by gzip's own checksum and by the published numbers of lines, and the archive of WMT14's test set
by the md5 that sacreBLEU expects. For the others we know of no published checksums.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.common import commands, packages, process, program
from scripts.common.folder import Folder, RecipeError
from scripts.common.progress import say
from scripts.common.steps import Steps
from scripts.data.corpus import SENTENCEPIECE

from . import archives, corpora, preprocessing
from .archives import LANGUAGES
from .corpora import Corpus

OUT = "runs/bleu_vs_d_dot/{}/data"
CORPORA = {"wmt14": corpora.wmt14, "iwslt14": corpora.iwslt14}
STEPS = ("download", "extract", "tokenise", "pieces", "encode", "preprocess")


def parse(argv: list[str]) -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    prog = "python -m scripts.experiments.bleu_vs_d_dot.prepare"
    costs = "\n\n".join(corpora.COSTS)
    parser = argparse.ArgumentParser(prog=prog, description=__doc__, epilog=costs, formatter_class=layout)
    parser.add_argument("--preset", choices=list(CORPORA), default="wmt14", help="(default: wmt14)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help=f"folder of the corpus (default: {OUT.format('PRESET')})"
    )
    parser.add_argument(
        "--workers", type=int, default=process.cores(), metavar="N", help="processes (default: one for each core)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only print the cost, the downloads and the commands")
    options = parser.parse_args(argv)
    if options.workers < 1:
        parser.error(f"--workers {options.workers}: expected 1 or more")
    options.corpus = CORPORA[options.preset]()
    return options


def preprocess(corpus: Corpus, out: Path, workers: int) -> list[str]:
    return [
        *("fairseq-preprocess", "--source-lang", corpus.source, "--target-lang", corpus.target),
        *(["--joined-dictionary"] if corpus.joined_dictionary else []),
        *(word for name, file in corpus.sets.items() for word in (f"--{name}pref", f"{out}/bpe/{file}")),
        *("--destdir", f"{out}/bin", "--workers", str(workers)),
    ]


def plan(options) -> str:
    urls = "\n".join(f"  {archive.url}" for archive in options.corpus.archives)
    return (
        f"{options.corpus.cost}\n\ndownloads into {options.out}/archives, unless they are there already:\n{urls}\n\n"
        f"{commands.printed(preprocess(options.corpus, options.out, options.workers))}"
    )


class _LineProgress:
    """Says a line for each tenth of the work of a step."""

    def __init__(self, total: int, what: str):
        self.total, self.what, self.count = total, what, 0

    def __call__(self) -> None:
        self.count += 1
        if self.total >= 10 and self.count % (self.total // 10) == 0:
            say(f"  {self.what}: {self.count:,} of {self.total:,} lines")


def _paths(out: Path, kind: str, name: str) -> dict[str, Path]:
    return {language: out / kind / f"{name}.{language}" for language in LANGUAGES}


def _extract(options) -> dict:
    corpus, out, found = options.corpus, options.out, {}
    for archive in corpus.archives:
        found |= archives.extract(archive, out / "archives", out / "raw")
    for name, texts in corpus.joined.items():
        found[name] = archives.join(texts, out / "raw", name)
        if found[name] != corpus.lines[name]:
            raise RecipeError(
                f"{', '.join(texts)} have {found[name]:,} lines, expected the published {corpus.lines[name]:,}"
            )
    print("".join(f"  {text}: {count:,} pairs\n" for text, count in found.items()), end="")
    return {"lines": found}


def _tokenise(options, counts: dict[str, int]) -> None:
    corpus, out = options.corpus, options.out
    for language in LANGUAGES:
        for number, (name, texts) in enumerate(corpus.tokens.items()):
            tick = _LineProgress(sum(counts[text] for text in texts), f"{name}.{language}")
            sources = [out / "raw" / f"{text}.{language}" for text in texts]
            style = corpus.others if number else corpus.training
            preprocessing.tokenise(sources, out / "tok" / f"{name}.{language}", language, options.workers, style, tick)
    if corpus.split is None:
        return
    source = _paths(out, "tok", next(iter(corpus.tokens)))
    found = preprocessing.split(source, _paths(out, "tok", "train"), _paths(out, "tok", "valid"), *corpus.split)
    _say_kept(found["train"] + found["valid"], found["read"])
    print(f"  {found['train']:,} pairs to train on, {found['valid']:,} to validate")


def _encode(corpus: Corpus, out: Path) -> None:
    for name in corpus.sets.values():
        source = _paths(out, "tok", name)
        tick = _LineProgress(sum(1 for _ in preprocessing.lines(source[corpus.source])), f"{name}, pieces")
        longest = corpus.longest_in_pieces if name == "train" else None
        read, kept = preprocessing.encode(out / SENTENCEPIECE, source, _paths(out, "bpe", name), longest, tick)
        if longest is not None:
            _say_kept(kept, read)


def _say_kept(kept: int, read: int) -> None:
    print(f"  {kept:,} of {read:,} training pairs kept")


def prepare(options) -> None:
    """Runs the steps of the preparation that are not finished. Raises RecipeError if one fails."""
    packages.require()
    corpus, out = options.corpus, options.out
    folder = Folder(out, STEPS)
    steps = Steps(folder)

    def files(kind: str, names) -> list[Path]:
        return [path for name in names for path in _paths(out, kind, name).values()]

    def fetch() -> dict:
        return {a.file: archives.fetch(a, out / "archives", lambda text: print(f"  {text}")) for a in corpus.archives}

    def learn() -> None:
        texts = files("tok", ["train"])
        preprocessing.learn(texts, out / SENTENCEPIECE, corpus.vocabulary, corpus.learn_every, corpus.coverage)

    command = preprocess(corpus, out, options.workers)
    with folder.locked():
        folder.claim({**corpus.claim, "vocabulary": corpus.vocabulary})
        done = [out / "archives" / archive.file for archive in corpus.archives]
        urls = [archive.url for archive in corpus.archives]
        steps.run("download", "download and check the archives", urls, done, fetch)
        raw = files("raw", corpus.texts)
        counts = steps.run("extract", "extract the texts", {}, raw, lambda: _extract(options))["lines"]
        tok, bpe = files("tok", corpus.sets.values()), files("bpe", corpus.sets.values())
        title = "normalise, tokenise" if corpus.split is None else "tokenise, clean"
        steps.run("tokenise", title, {}, tok, lambda: _tokenise(options, counts))
        steps.run("pieces", f"learn {corpus.vocabulary:,} pieces", {}, [out / SENTENCEPIECE], learn)
        title = "split into pieces, clean" if corpus.split is None else "split into pieces"
        steps.run("encode", title, {}, bpe, lambda: _encode(corpus, out))
        # The number of workers is left out. It changes nothing, and the folder may be used on another machine.
        steps.binarise(command, command[:-1], "dict.de.txt")
    print(f"{out} is ready; continue with python -m scripts.experiments bleu_vs_d_dot --preset {corpus.preset}")


def main(argv: list[str]) -> int:
    options = parse(argv)
    options.out = program.from_root(options.out) or Path(OUT.format(options.preset))
    print(plan(options), flush=True)
    if options.dry_run:
        return 0
    return program.run(lambda: prepare(options), "continues")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
