"""Tests the preparation of WMT14 with made-up archives: what it downloads, checks, refuses and keeps."""

import dataclasses
import functools
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from scripts.common import process
from scripts.common.folder import RecipeError
from scripts.experiments.bleu_vs_d_dot import archives, prepare, preprocessing
from tests.scripts.packed import packed

ROOT = process.ROOT
PUBLISHED_TEST = archives.TEST
pytest.importorskip("sacremoses")
pytest.importorskip("sentencepiece")

PAIRS = {
    "europarl-v7": [("The house\x00 is old – isn't it?", "Das Haus ist alt , nicht wahr ?")] * 30
    + [("A well-known   rule.", "Eine wohlbekannte Regel.")] * 30,
    "commoncrawl": [("One\u2028line", "Eine Zeile"), ("", "Leer"), ("short", "viel " * 30), ("w " * 300, "w " * 300)]
    * 10,
    "news-commentary-v12": [("“Quoted” & so on", "„Zitiert“ & so weiter")] * 20,
    "newstest2013": [("What’s up?", "Was ist los?")] * 3,
    "newstest2014": [("It’s a test-set &amp; more.", "Ein Test-Set &amp; mehr.")] * 4,
}


def texts_of(archive):
    members = {}
    for text, sides in archive.members.items():
        for column, language in enumerate(archives.LANGUAGES):
            name = sides[language][0]
            side = [pair[column] for pair in PAIRS[text]]
            if name.endswith(".sgm"):
                segments = "\n".join(f'<seg id="{n}">{line}</seg>' for n, line in enumerate(side, 1))
                members[name] = f'<refset>\n<doc docid="a">\n{segments}\n</doc>\n</refset>\n'
            else:
                members[name] = "".join(f"{line}\n" for line in side)
    return members


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Makes archives at file:// URLs, and sets the published lengths to theirs."""
    folder = tmp_path / "server"
    folder.mkdir()

    def move(archive, url, lines):
        moved = archives.Archive(f"file://{folder}/{archive.file}", archive.members, lines)
        (folder / archive.file).write_bytes(packed(texts_of(archive)))
        return moved

    for name in ("EUROPARL", "COMMON_CRAWL", "DEV", "TEST"):
        archive = getattr(archives, name)
        monkeypatch.setattr(archives, name, move(archive, folder, len(PAIRS[next(iter(archive.members))])))
    monkeypatch.setattr(archives, "NEWS_COMMENTARY", move(archives.NEWS_COMMENTARY, folder, None))
    return folder


def options(out, *more):
    parsed = prepare.parse(["--out", str(out), "--workers", "1", *more])
    parsed.corpus = dataclasses.replace(parsed.corpus, vocabulary=80)
    return parsed


@pytest.mark.slow
def test_prepared_from_archives_to_binarised_corpus(server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    out = tmp_path / "data"
    prepare.prepare(options(out))
    # One dictionary for both languages.
    assert (out / "bin/dict.de.txt").read_bytes() == (out / "bin/dict.en.txt").read_bytes()
    assert (out / "bin/dict.de.txt").is_file() and (out / "bin/test.en-de.en.bin").is_file()

    # The references are the raw text, as in sacreBLEU.
    assert (out / "raw/newstest2014.de").read_text() == "Ein Test-Set &amp; mehr.\n" * 4
    tokens = (out / "tok/train.en").read_text(encoding="utf-8").split("\n")
    assert tokens[0] == "The house is old - isn &apos;t it ?"
    assert tokens[30] == "A well @-@ known rule ."
    assert tokens[100] == "&quot; Quoted &quot; &amp; so on"
    assert (out / "tok/newstest2013.en").read_text().split("\n")[0] == "What &apos;s up ?"

    # Pairs with an empty side, with sides of too different lengths, or with too long sides are gone.
    # The others are there, in order.
    pieces = {name: (out / f"bpe/train.{name}").read_text(encoding="utf-8").split("\n") for name in ("en", "de")}
    assert len(pieces["en"]) == len(pieces["de"]) == 60 + 10 + 20 + 1
    assert "90 of 120 training pairs kept" in capsys.readouterr().out
    joined = ["".join(line.split(" ")).replace("▁", " ").strip() for line in pieces["en"]]
    assert joined[:60] == tokens[:60] and joined[60].split() == ["One", "line"]

    # Nothing is done or downloaded twice.
    for archive in server.iterdir():
        archive.unlink()
    prepare.prepare(options(out))
    assert capsys.readouterr().out.count("already done") == len(prepare.STEPS)


@pytest.mark.slow
def test_several_workers_write_the_same_tokens_in_order(tmp_path):
    (tmp_path / "raw").write_text("".join(f"Line {number}, isn't it?\n" for number in range(1200)))
    style = preprocessing.Style(lower=True)
    for workers in (1, 2):
        preprocessing.tokenise([tmp_path / "raw"], tmp_path / str(workers), "en", workers, style)
    one, two = ((tmp_path / name).read_text().split("\n") for name in "12")
    assert one == two and one[999] == "line 999 , isn &apos;t it ?"


def test_archive_that_is_not_whole_is_never_taken(server, tmp_path):
    packed_test = server / archives.TEST.file
    whole = packed_test.read_bytes()
    flipped = bytearray(whole)
    flipped[len(flipped) // 2] ^= 1
    for damaged in (whole[:-9], whole[: len(whole) // 2], bytes(flipped), b"<html>"):
        packed_test.write_bytes(damaged)
        with pytest.raises(RecipeError, match=r"not a complete \.tgz"):
            archives.fetch(archives.TEST, tmp_path, print)
        assert list(tmp_path.glob("test-full*")) == []


def test_unreachable_archive_is_named(server, tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    (server / archives.DEV.file).unlink()
    with pytest.raises(RecipeError, match=r"(?s)dev\.tgz.*by hand"):
        archives.fetch(archives.DEV, tmp_path, print)


def test_the_test_set_is_sacrebleu_s(server, tmp_path):
    dataset = pytest.importorskip("sacrebleu.dataset").DATASETS["wmt14/full"]
    pinned = PUBLISHED_TEST
    assert dataset.md5 == [pinned.md5] and Path(dataset.data[0]).name == pinned.file
    assert dataset.langpairs["en-de"] == [pinned.members["newstest2014"][language][0] for language in ("en", "de")]
    archive = archives.Archive(archives.TEST.url, archives.TEST.members, None, pinned.md5)
    with pytest.raises(RecipeError, match=f"md5 expected {pinned.md5} .sacreBLEU's., actual [0-9a-f]+; remove"):
        archives.fetch(archive, tmp_path, print)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_member_that_is_no_file_is_refused(server, tmp_path, kind):
    with tarfile.open(tmp_path / archives.DEV.file, "w:gz") as tar:
        entry = tarfile.TarInfo("dev/newstest2013.en")
        entry.type, entry.linkname = kind, "/etc/passwd"
        tar.addfile(entry)
    with pytest.raises(RecipeError, match=r"dev\.tgz: expected dev/newstest2013\.en to be a file"):
        archives.extract(archives.DEV, tmp_path, tmp_path / "raw")
    assert list((tmp_path / "raw").iterdir()) == []


@pytest.mark.parametrize("archive", ["TEST", "EUROPARL"])
def test_text_that_is_not_utf_8_is_refused(server, tmp_path, archive):
    archive = getattr(archives, archive)
    members = {name: text.encode("utf-16") for name, text in texts_of(archive).items()}
    (tmp_path / archive.file).write_bytes(packed(members))
    with pytest.raises(RecipeError, match=r"\.tgz: .* is not UTF-8 text"):
        archives.extract(archive, tmp_path, tmp_path / "raw")


def test_texts_of_another_length_than_published_are_refused(server, tmp_path):
    archives.fetch(archives.DEV, tmp_path, print)
    other = archives.Archive(archives.DEV.url, archives.DEV.members, 3000)
    with pytest.raises(RecipeError, match="has 3 lines, expected the published 3,000"):
        archives.extract(other, tmp_path, tmp_path / "raw")


def test_sides_that_differ_in_length_are_refused(server, tmp_path):
    members = texts_of(archives.EUROPARL)
    members["training/europarl-v7.de-en.de"] += "Noch eine.\n"
    (server / archives.EUROPARL.file).write_bytes(packed(members))
    archives.fetch(archives.EUROPARL, tmp_path, print)
    with pytest.raises(RecipeError, match="europarl-v7 differ in length"):
        archives.extract(archives.EUROPARL, tmp_path, tmp_path / "raw")


def test_dry_run_states_cost_and_downloads():
    script = [sys.executable, "-m", "scripts.experiments.bleu_vs_d_dot.prepare"]
    result = subprocess.run([*script, "--dry-run"], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    urls = re.findall(r"http\S+\.tgz", result.stdout)
    assert [Path(url).name for url in urls] == [
        "training-parallel-europarl-v7.tgz",
        "training-parallel-commoncrawl.tgz",
        "training-parallel-nc-v12.tgz",
        "dev.tgz",
        "test-full.tgz",
    ]
    for word in ("GB", "core-hours", "GPU-hours", "fairseq_cli.preprocess"):
        assert word in result.stdout
    wrong = subprocess.run([*script, "--preset", "wmt15"], cwd=ROOT, capture_output=True, text=True)
    assert wrong.returncode == 2 and "wmt15" in wrong.stderr


def test_clean_limits():
    clean = functools.partial(preprocessing._is_clean, longest=250)
    assert clean(10, 15) and clean(15, 10) and clean(250, 250)
    assert not clean(10, 16) and not clean(0, 0) and not clean(251, 251)
