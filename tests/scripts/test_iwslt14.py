"""Tests the preset iwslt14 of BLEU over d_dot: what is made of its archive, and its recipe, tables and scores."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from fwp_fairseq.tables.table import run_rows
from scripts.common import process
from scripts.common.commands import flags_of
from scripts.common.folder import RecipeError
from scripts.experiments.bleu_vs_d_dot import archives, prepare, preprocessing, presets, recipe, rows
from scripts.results.tables import TABLES
from scripts.translation import commands
from scripts.translation.commands import Devices, Run
from tests.scripts.packed import packed
from tests.scripts.recipe_runs import records_in

pytest.importorskip("sacremoses")
pytest.importorskip("sentencepiece")

# Lines about a talk, and its sentences. The sides of one pair are too different in length.
TALK = {
    "de": """<url>http://www.ted.com/talks/lang/de/a.html</url>
<keywords>talks, Haus</keywords>
<speaker>Erika Muster</speaker>
<talkid>535</talkid>
<title>Erika Muster: Das wohlbekannte Haus</title>
<description>TED Talk Untertitel: Ein Haus im <b>Wald</b>.</description>
 Das Haus ist alt , nicht wahr ?\x20
Der Hund läuft durch den grünen Wald-Weg .
Ja .
""",
    "en": """<url>http://www.ted.com/talks/lang/en/a.html</url>
<keywords>talks, house</keywords>
<speaker>Erika Muster</speaker>
<talkid>535</talkid>
<title>Erika Muster: The well-known house</title>
<description>TED Talk Subtitles: A house in the <b>forest</b>.</description>
 The house isn’t old, is it?\x20
The dog runs along the green forest-path.
Yes, that is certainly so.
""",
}
KEPT_LINES, TALKS = 5, 12  # lines of a talk that are selected and clean
TEST = {"de": "Der Hund ist ’ne AG &amp; alt.", "en": "The dog’s an AG &amp; old-ish."}


def members(talks=TALKS, segments=2):
    found = {}
    for language in ("de", "en"):
        found[f"./de-en/train.tags.de-en.{language}"] = TALK[language] * talks
        xml = "".join(f'<seg id="{n}"> {TEST[language]} </seg>\n' for n in range(1, segments + 1))
        for text in archives.IWSLT14_TESTS:
            head = f"<doc docid='1'>\n<title>{text}</title>\n"
            found[f"./de-en/IWSLT14.{text}.de-en.{language}.xml"] = f"<mteval>\n{head}{xml}</doc>\n</mteval>\n"
    return found


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Makes the archive at a file:// URL."""
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "de-en.tgz").write_bytes(packed(members()))
    moved = dataclasses.replace(archives.IWSLT14, url=f"file://{folder}/de-en.tgz")
    monkeypatch.setattr(archives, "IWSLT14", moved)
    return folder


def options(out, *more, sentences=10):
    found = prepare.parse(["--preset", "iwslt14", "--out", str(out), "--workers", "1", *more])
    found.corpus = dataclasses.replace(found.corpus, vocabulary=100, lines={"test": sentences})
    return found


@pytest.mark.slow
def test_smoke_from_archive_to_record_with_the_real_tools(server, real_root, tmp_path, capsys):
    """The archive is this test's own, and the model has 1+1 layers; everything else is what a user runs."""
    out = tmp_path / "iwslt14"
    data = out / "data"
    prepare.prepare(options(data))
    output = capsys.readouterr().out
    pairs = KEPT_LINES * TALKS
    assert f"{pairs} of {(KEPT_LINES + 1) * TALKS} training pairs kept" in output
    assert f"{pairs - pairs // 23} pairs to train on, {pairs // 23} to validate" in output

    # Only the title and the description are left of what is about a talk, as with fairseq's script, and the speaker.
    train = (data / "tok/train.en").read_text(encoding="utf-8").splitlines()
    assert train[:5] == [
        "&lt; speaker &gt; erika muster &lt; / speaker &gt;",
        "erika muster : the well-known house",
        "ted talk subtitles : a house in the &lt; b &gt; forest &lt; / b &gt; .",
        "the house isn ’ t old , is it ?",
        "the dog runs along the green forest-path .",
    ]
    every = [line for number, line in enumerate(train[:5] * TALKS, 1) if number % 23 == 0]
    assert (data / "tok/valid.en").read_text(encoding="utf-8").splitlines() == every
    # The test set: apostrophes as fairseq writes them, and references as they are in the archive.
    assert (data / "tok/test.en").read_text() == "the dog &apos;s an ag &amp; amp ; old-ish .\n" * 10
    assert (data / "raw/test.en").read_text(encoding="utf-8") == f"{TEST['en']}\n" * 10
    assert not any((data / f"bin/dict.{side}.txt").read_bytes() == b"" for side in ("de", "en"))

    # Nothing is done or downloaded twice.
    (server / "de-en.tgz").unlink()
    prepare.prepare(options(data))
    assert capsys.readouterr().out.count("already done") == len(prepare.STEPS)

    line = ["--preset", "iwslt14", "--cpu", "--rows", "favor-24-decoder", "--out", str(out)]
    layers = ("--encoder-layers", "1", "--decoder-layers", "1")
    assert recipe.main([*line, "--", "--max-update", "1", *layers]) == 0
    (record,) = records_in(out / "bleu_vs_d_dot.jsonl")
    expected = {"preset": "iwslt14", "row": "favor-24-decoder", "sites": "decoder", "d_dot": 24, "updates": 1}
    assert expected.items() <= record.items()
    assert record["signature"].startswith("BLEU|nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|")
    assert record["tokenised_signature"].startswith("BLEU|nrefs:1|case:mixed|eff:no|tok:none|smooth:none|")
    assert record["valid_bleu"] is not None and record["bleu_tokenised"] is not None
    name = "bleu_vs_d_dot-iwslt14"
    assert len(run_rows(TABLES[name], name, [record])) == 1
    generated = (out / "favor-24-decoder-seed1/generate/generate-test.txt").read_text(encoding="utf-8")
    assert generated.count("\nH-") + generated.startswith("H-") == 10 == generated.count("\nD-")


def test_another_number_of_test_sentences_than_published_is_refused(server, tmp_path):
    archives.fetch(archives.IWSLT14, tmp_path / "archives", print)
    with pytest.raises(RecipeError, match=r"TED\.dev2010, .* have 10 lines, expected the published 6,750"):
        prepare._extract(options(tmp_path, sentences=6750))


def test_published_facts():
    corpus = prepare.parse(["--preset", "iwslt14"]).corpus
    assert corpus.archives[0].url.endswith("dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz")
    assert (corpus.lines, corpus.vocabulary, corpus.split) == ({"test": 6750}, 10000, (175, 23))


def test_every_pair_has_one_place(tmp_path):
    def paths(name):
        return {language: tmp_path / f"{name}.{language}" for language in ("en", "de")}

    for language, path in paths("all").items():
        path.write_text("".join(f"{language}{n} word\n" if n % 10 else "\n" for n in range(100)))
    found = preprocessing.split(paths("all"), paths("train"), paths("valid"), 175, 23)
    assert found == {"read": 100, "train": 87, "valid": 3}
    clean = [n for n in range(100) if n % 10]
    for language in ("en", "de"):
        lines = {name: paths(name)[language].read_text().split("\n")[:-1] for name in ("train", "valid")}
        assert lines["valid"] == [f"{language}{clean[n]} word" for n in (22, 45, 68)]
        assert lines["train"] == [f"{language}{n} word" for i, n in enumerate(clean, 1) if i % 23]


def test_preparation_states_its_cost():
    command = [sys.executable, "-m", "scripts.experiments.bleu_vs_d_dot.prepare", "--preset", "iwslt14", "--dry-run"]
    done = subprocess.run(command, cwd=process.ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("GB", "one GPU", "iwslt14/data/archives", "fairseq/data/iwslt14/de-en.tgz", "--source-lang de"):
        assert word in done.stdout
    assert "joined-dictionary" not in done.stdout and "statmt" not in done.stdout


def run_of(row):
    return Run(presets.IWSLT14, rows.BY_NAME[row], 1, Path("runs/x"), Path("data"))


def test_it_is_the_recipe_of_fairseq_from_german_to_english():
    flags = flags_of(commands.train(run_of("dpfp-256-decoder"), Devices((0,))))
    expected = {
        "--source-lang": "de",
        "--target-lang": "en",
        "--arch": "fwp_transformer_iwslt_de_en",
        "--share-decoder-input-output-embed": "",
        "--adam-betas": "(0.9, 0.98)",
        "--clip-norm": "0.0",
        "--lr": "0.0005",
        "--lr-scheduler": "inverse_sqrt",
        "--warmup-updates": "4000",
        "--dropout": "0.3",
        "--weight-decay": "0.0001",
        "--label-smoothing": "0.1",
        "--max-tokens": "4096",
        "--update-freq": "1",
        "--max-update": "50000",
        "--best-checkpoint-metric": "bleu",
        "--fwp-encoder-feature-map": "softmax",
        "--fwp-feature-map": "dpfp",
    }
    assert expected.items() <= flags.items()
    assert "--fp16" not in flags and "--share-all-embeddings" not in flags
    assert "--fwp-encoder-feature-map" not in flags_of(commands.train(run_of("dpfp-256"), Devices((0,))))
    decode = flags_of(commands.generate(run_of("softmax"), Devices((0,))))
    expected = {"--source-lang": "de", "--target-lang": "en", "--beam": "5", "--tokenizer": "moses"}
    assert expected.items() <= decode.items()


def test_rows_are_those_of_the_sweep_that_such_heads_have():
    found = rows.ROWS_OF_128
    assert len({row.name for row in found}) == len(found) == len({tuple(row.flags.items()) for row in found})
    assert {row.name for row in rows.ROWS} - {row.name for row in found} == {"elu-64", "delta-elu-64", "dpfp-384"}


def test_both_kinds_of_bleu_are_of_lower_case():
    detokenised, tokenised = map(flags_of, commands.all_bleu(run_of("softmax")))
    assert "--lowercase" in detokenised and detokenised["--references"].endswith("raw/test.en")
    assert tokenised["--lines"] == "H" and tokenised["--references"].endswith("tok/test.en")
