"""Tests the experiment on documents: passages, buckets, extraction, table, and a whole run of the smallest preset."""

import gzip
import json
import re
import shlex
import subprocess

import pytest

from scripts.common.errors import RecipeError
from scripts.common.runner.run import Run
from scripts.experiments.documents import corpus, evaluation, extract, manuals
from scripts.experiments.documents.corpus import Paragraph, passages, text_of
from scripts.experiments.documents.evaluation import Translations, scores
from scripts.experiments.documents.presets import MORE, SMOKE
from scripts.experiments.documents.rows import CANDIDATES
from tests.pages import ROOT, command


def paragraphs(*texts, document="d"):
    return [Paragraph(document, text, text.upper()) for text in texts]


def test_passages_hold_whole_paragraphs_up_to_so_many_words():
    found = list(passages(paragraphs("a b", "c", "d e f", "g h i j k", "l"), 4))
    assert [text_of(passage, "en") for passage in found] == ["a b c", "d e f", "g h i j k", "l"]
    assert [text_of(passage, "de") for passage in found] == ["A B C", "D E F", "G H I J K", "L"]


def test_passages_end_with_their_document():
    texts = [*paragraphs("a", document="first"), *paragraphs("b", document="second")]
    assert list(passages(texts, 4)) == [[one] for one in texts]


@pytest.mark.parametrize("row, cross", [
    ("hybrid", "softmax,source-window=8"), ("softmax-rotary-rotary-cross", "softmax-rotary,source-window=8"),
])  # fmt: skip
def test_a_source_window_leaves_the_rest_of_cross_attention_as_it_was_trained(tmp_path, row, cross):
    (row,) = (candidate for candidate in SMOKE.rows if candidate.name == row)
    run = Run(SMOKE, row, 1, tmp_path, tmp_path)
    command = evaluation.decode_command(run, tmp_path / "checkpoint_best.pt", tmp_path / "source", {}, 8)
    assert command[command.index("--model-overrides") + 1] == str({"fwp_cross": cross})


def test_every_length_is_in_one_bucket():
    lengths = [1, 64, 65, 128, 129, 256, 257, 1300]
    found = Translations(lengths, [""] * 8, [""] * 8, [False] * 8)
    assert [found.bucket(name) for name in evaluation.BUCKETS] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert found.bucket("all") == list(range(8))


def test_scores_are_those_of_the_passages_in_a_bucket():
    good, bad = "the cat sat on the mat today", "nothing of this kind is there at all"
    found = scores(Translations([10, 100, 100], [good] * 3, [good, bad, ""], [False, True, False]))
    buckets = found["buckets"]
    assert (buckets["64"]["bleu"], buckets["64"]["chrf"], buckets["64"]["length_ratio"]) == (100, 100, 1)
    assert buckets["128"]["bleu"] < 10 < buckets["all"]["bleu"] < 100
    assert [buckets[name]["windows"] for name in ("all", "64", "128")] == [3, 1, 2] and "256" not in buckets
    assert (found["cut"], found["empty"]) == (0.3333, 0.3333)


def test_translations_are_read_in_the_order_of_their_passages(tmp_path):
    for kind, language, text in (("bpe", "en", "▁a\n▁b ▁c\n▁d\n"), ("windows", "de", "A\nB C\nD\n")):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / f"test40.{language}").write_text(text)
    log, limit = tmp_path / "log", " ".join(["▁x"] * 8)
    log.write_text(f"S-1\t▁d\nH-1\t-1\t▁D\nD-1\t-1\tD\nH-0\t-1\t{limit}\nD-0\t-1\tx x\n")
    run = Run(SMOKE, SMOKE.rows[0], 1, tmp_path, tmp_path)
    assert evaluation.read(run, log, 40, one_of=2) == Translations([1, 1], ["A", "D"], ["x x", "D"], [True, False])
    with pytest.raises(RecipeError, match="expected 3 translations, found 2"):
        evaluation.read(run, log, 40, one_of=1)


_ENGLISH = r"""'\" t
.TH LS 1
.SH NAME
ls \- list files
.SH OPTIONS
.TP
\fB\-a\fR, \fB\-\-all\fR
do not ignore
.B hidden
files
.IP \(bu 2
The
.BR stat (2)
call.
.nf
$ ls
.fi
.SH OTHER
One paragraph here.
.PP
Two.
.SH MDOC
.Nm ls
does it.
"""
_GERMAN = r""".SH BEZEICHNUNG
ls \- Dateien auflisten
.SH OPTIONEN
.TP
\fB\-a\fR, \fB\-\-all\fR
\(Bqversteckte\(lq Dateien
nicht auslassen
.IP \(bu 2
Der Aufruf
.BR stat (2).
.nf
$ ls
.fi
.SH ANDERES
Nur ein Absatz.
.IP \(bu 2
Zwei.
.SH MDOC
.Nm ls
tut es.
.SH ÜBERSETZUNG
Von jemandem.
"""


def test_manuals_are_aligned_by_their_sections(tmp_path):
    def page(path: str, text: str, compressed: bool = True) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(gzip.compress(text.encode()) if compressed else text.encode())

    for name in ("ls", "dir"):  # the same page by another name
        page(f"usr/share/man/man1/{name}.1.gz", _ENGLISH)
        page(f"usr/share/man/de/man1/{name}.1.gz", _GERMAN)
    page("usr/share/man/man1/cp.1.gz", ".SH NAME\ncopy\n")
    page("usr/share/help/C/gnome-help/a.page", "<page><title>Log  out</title><p>Click <gui>x</gui>.</p></page>", False)
    page("usr/share/help/de/gnome-help/a.page", "<page><title>Abmelden</title><p>Auf x klicken.</p></page>", False)
    found = [(p.document, p.en, p.de) for p in manuals.manual_paragraphs(tmp_path)]
    assert found == [
        ("man1/dir.1", "NAME", "BEZEICHNUNG"),
        ("man1/dir.1", "ls - list files", "ls - Dateien auflisten"),
        ("man1/dir.1", "OPTIONS", "OPTIONEN"),
        ("man1/dir.1", "do not ignore hidden files", "„versteckte“ Dateien nicht auslassen"),
        ("man1/dir.1", "The stat(2) call.", "Der Aufruf stat(2)."),
        ("gnome-help/a", "Log out", "Abmelden"),
        ("gnome-help/a", "Click x.", "Auf x klicken."),
    ]


def test_no_long_paragraph_of_the_test_documents_stands_in_train():
    text = "a paragraph of more than eight words stands in all documents"
    parts = extract.split(Paragraph(f"d{n}", text, f"{text} {n}") for n in range(200))
    assert parts["valid"] and parts["test"] and not parts["train"]


def test_more_documents_are_trained_on_but_for_what_stands_in_the_tests(tmp_path, monkeypatch):
    monkeypatch.setenv("FWP_DATA", str(tmp_path))
    test = "a paragraph of more than eight words stands in both"
    documents = {"train": paragraphs("a"), "valid": paragraphs("b"), "test": paragraphs(test)}
    extract.write(documents, tmp_path / "documents")
    extract.write({"train": paragraphs("c", test, document="m")}, tmp_path / "manuals")
    parts, sums = corpus.read_all(MORE.corpus)
    assert [paragraph.en for paragraph in parts["train"]] == ["a", "c"] and parts["test"] == paragraphs(test)
    assert sums.keys() == corpus.SHA256.keys()


SMALLEST = command("scripts/experiments/documents/README.md", "python -m scripts.experiments documents --preset smoke")
COMPARE = command(
    "scripts/experiments/documents/README.md", "python -m scripts.experiments documents --preset long --rows hybrid"
)
TEST_ON = command(
    "scripts/experiments/documents/README.md",
    "python -m scripts.experiments documents --preset long --rows softmax hybrid --seeds 1 2 3 --test-on",
)
WITH_WINDOWS = command(
    "scripts/experiments/documents/README.md",
    "python -m scripts.experiments documents --preset long --rows softmax hybrid --seeds 1 2 3 --source-window",
)


def run(home, line, rows="hybrid"):
    """Carries out a page's command with the smallest preset, one row and one seed, and returns what it prints."""
    words = shlex.split(line.replace("softmax hybrid", rows).replace("--seeds 1 2 3", ""))
    words = [home / "python", *words[1:], "--preset", "smoke", "--out", str(home / "out")]
    variables = {"FWP_DATA": str(home / "data"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory, forked_python):
    """A folder with data/documents, which has 120 paragraphs in each part, and with out, where a hybrid was trained.

    The interpreter in it, which its commands use for their tools too, runs them in processes that are forked.
    """
    home = tmp_path_factory.mktemp("home")
    (home / "python").symlink_to(forked_python.program)
    words = [f"{number**5:x}" for number in range(30, 130)]
    texts = [" ".join(words[n * k % 97] for k in range(1, 12)) for n in range(120)]
    extract.write({part: paragraphs(*texts) for part in ("train", "valid", "test")}, home / "data/documents")
    assert gzip.decompress((home / "data/documents/test.doc.gz").read_bytes()).count(b"\n") == 120
    run(home, SMALLEST)
    return home


@pytest.mark.slow
def test_the_smallest_preset_runs_from_documents_to_records(home):
    found, *_ = map(json.loads, (home / "out/documents.jsonl").read_text().splitlines())
    assert (found["row"], found["corpus"]) == ("hybrid", "own")
    assert found["updates"] == found["curve"][-1][0] == 4
    assert found["valid_loss"] == min(loss for _, loss, _ in found["curve"])
    assert set(found["tests"]) == {"40", "80"}
    assert found["tests"]["40"]["buckets"]["all"]["windows"] == 40


@pytest.mark.slow
@pytest.mark.parametrize("row", CANDIDATES, ids=lambda row: row.name)
def test_a_candidate_is_trained_and_its_checkpoint_reopened(home, row):
    said = run(home, SMALLEST, row.name)
    assert f"{row.name}-seed1: passages of 80 words: BLEU all 0" in said


@pytest.mark.slow
def test_finished_models_are_compared_and_translate_other_documents_and_with_source_windows(home):
    same = run(home, COMPARE.replace("--compare softmax", "--compare hybrid"))
    assert "40 words, all: BLEU 0" in same and len(same.splitlines()) == same.count("p = 1.000") >= 2
    others = TEST_ON.replace("data/gimp", str(home / "data/documents"))
    said = run(home, others)
    assert "hybrid-seed1: passages of 80 words: BLEU all 0" in said and (home / "out/data-documents/bin").is_dir()
    assert run(home, others).count("already done") == 2
    (home / "out/hybrid-seed1/checkpoints/checkpoint_best.pt").touch()
    assert "already done" not in run(home, others)
    said = run(home, WITH_WINDOWS.replace("32 64", "8"))
    assert "hybrid-seed1: passages of 80 words, 8 positions read in a step: BLEU all 0" in said
    logs = (home / "out/hybrid-seed1/checkpoints" / f"test80-one-of-1{end}/decode.log" for end in ("", "-window-8"))
    scored = [re.findall(r"^H-\d+\t(\S+)", log.read_text(), re.M) for log in logs]
    assert len(scored[0]) == len(scored[1]) > 10 and scored[0] != scored[1]
    assert {"paired", "documents_others", "documents_source_window"} < {path.stem for path in (home / "out").iterdir()}


@pytest.mark.slow
def test_a_model_of_documents_is_converted(home):
    convert = command(
        "scripts/experiments/documents_conversion/README.md",
        "python -m scripts.experiments documents_conversion --preset tenth --rows hedgehog",
    )
    model = home / "out/hybrid-seed1/checkpoints/checkpoint_best.pt"
    run(home, convert.replace("--preset tenth ", "").replace("softmax.pt", str(model)))
    lines = map(json.loads, (home / "out/documents_conversion.jsonl").read_text().splitlines())
    stages = {record["stage"]: (record["updates"], record["buckets"]["all"]["windows"]) for record in lines}
    assert stages == {"softmax": (0, 40), "converted": (0, 40), "transferred": (4, 40), "finetuned": (8, 40)}
