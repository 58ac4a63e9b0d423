"""`fwp translate` beside fairseq-interactive, on a model with fast weights at every site."""

import os
import re
import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks import translation_memory
from fwp_fairseq.cli import main
from fwp_fairseq.cli import translate as translate_command
from fwp_fairseq.cli.errors import CommandError, UsageError
from fwp_fairseq.cli.plugin import import_plugin
from fwp_fairseq.cli.translator import Translator, checkpoint_in, data_of, pieces_of
from fwp_fairseq.modules import large_linears
from fwp_fairseq.modules.int8 import Int8Linear
from fwp_fairseq.modules.packed import PackedLinear
from tests.fairseq_tools.conftest import ENVIRONMENT

LIMITS = ("--max-len-a", 0, "--max-len-b", 30, "--beam", 3, "--lenpen", 0.6)


@pytest.fixture
def text(tools) -> str:
    return (tools.folder / "raw/val.en").read_text(encoding="utf-8")


@pytest.fixture
def translate(tools, mixed):
    """Runs the command with the pieces of the fixture's corpus, from a folder that the checkpoint does not name."""

    def run(text: str, *arguments, model: str = "mixed", spm=None):
        found = ["--data", tools.folder / "bin", "--spm", spm or tools.folder / "spm.model"]
        command = ("fwp", "translate", tools.folder / model, "--cpu", *found, *arguments)
        return tools.command(*command, folder=tools.folder.parent, stdin=text)

    return run


def interactive(tools, text: str, *arguments):
    return tools.run(
        *("interactive", "bin", *tools.user_dir, "--path", "mixed/checkpoint_best.pt", "-s", "en", "-t", "de"),
        *("--task", "translation", "--cpu", "--buffer-size", 100, "--batch-size", 8, *LIMITS, *arguments),
        *("--bpe", "sentencepiece", "--sentencepiece-model", "spm.model"),
        stdin=text,
    ).ok()


def test_lines_are_those_of_fairseq_interactive_in_their_order(tools, text, translate):
    lines = text.splitlines()[:12]
    expected = interactive(tools, "\n".join(lines) + "\n", "--nbest", 2, "--print-alignment")
    found = translate("\n".join(lines) + "\n", *LIMITS, "--nbest", 2, "--alignments", "--max-tokens", 100).ok()
    rows = [line.split("\t") for line in found.out.splitlines()]
    theirs = [line.split("\t") for line in expected.lines("D")]
    assert [row[2] for row in rows] == [line[1] for line in theirs]
    assert [float(row[1]) for row in rows] == pytest.approx([float(line[0]) for line in theirs], abs=1e-4)
    assert [row[0] for row in rows] == [str(number) for number in range(12) for _ in (0, 1)]
    assert [row[3] for row in rows] == expected.lines("A")
    assert len({row[1] for row in rows}) > 12  # a hypothesis of another line would have another score


def test_empty_and_very_long_lines(text, translate):
    """A byte order mark is no text, and a separator inside a line does not end it."""
    long = "\u2028".join(text.split()[:2000])
    found = translate(f"\ufeff\n{long}\n\n\u200b\n", *LIMITS).ok()
    first, translated, last, no_pieces = found.out.split("\n")[:4]
    assert (first, last) == ("", "") and translated
    assert no_pieces == ""  # which SentencePiece makes of a space without width
    assert "1 of 1 sources have up to" in found.err and "more than any source in training" in found.err
    assert "reached the limit of --max-len-a 0 --max-len-b 30" in found.err


def test_eight_bits(tools, mixed, text, monkeypatch, capsys):
    monkeypatch.setattr(large_linears, "SMALLEST", 1)
    import_plugin()
    given = (tools.folder / "mixed/checkpoint_best.pt", tools.folder / "bin", str(tools.folder / "spm.model"))
    exact, rounded = (Translator(*given, {"beam": 2}, 1000, int8, None, "cpu") for int8 in (False, True))
    for model, kind in ((exact, PackedLinear), (rounded, Int8Linear)):
        assert any(isinstance(module, kind) for module in model.model.modules())
    lines = [exact.encode(line) for line in text.splitlines()[:6]]
    assert all(of[0].text for of in rounded.translate(lines, lambda _: None))
    for line in lines:  # the same words, because another search may find others
        words = line[None], torch.tensor([len(line)]), line[None]
        with torch.no_grad():
            expected, found = (model.model(*words)[0].log_softmax(-1) for model in (exact, rounded))
        assert 0 < (found - expected).abs().mean() < 0.05
    with pytest.raises(UsageError, match="--int8 is for CPUs, and the model is on cuda"):
        Translator(*given, {}, 1000, True, None, "cuda")
    monkeypatch.setattr(large_linears, "SMALLEST", 10**9)
    Translator(*given, {}, 1000, True, None, "cpu")
    assert "--int8 changes nothing: no linear layer has 1,000,000,000 weights or more" in capsys.readouterr().err


@pytest.mark.parametrize("int8", [False, True])
def test_a_translation_does_not_depend_on_its_neighbours(tools, mixed, text, monkeypatch, int8):
    monkeypatch.setattr(large_linears, "SMALLEST", 1)
    import_plugin()
    given = (tools.folder / "mixed/checkpoint_best.pt", tools.folder / "bin", str(tools.folder / "spm.model"))
    models = [Translator(*given, {"beam": 2}, tokens, int8, None, "cpu") for tokens in (60, 4000)]
    lines = [models[0].encode(line) for line in text.splitlines()[:12]]
    alone = [next(iter(models[0].translate([line], lambda _: None)))[0] for line in lines]
    for order in (range(12), range(11, -1, -1), (3, 3, 7, 0, 11)):
        for model in models:
            for i, (best, *_) in zip(order, model.translate([lines[i] for i in order], lambda _: None), strict=True):
                assert best.text == alone[i].text
                assert best.score == pytest.approx(alone[i].score, abs=1e-4)


def test_a_document(text, translate):
    a, b, c, *_ = text.splitlines()
    a, b, c = (f"{line.strip(' .')}." for line in (a, b, c))
    found = translate(f"{a}\n{b}\n\n{c}\n", *LIMITS, "--document", "--passage", len(a.split()))
    single = translate(f"{a}\n{b}\n{c}\n", *LIMITS).out.splitlines()
    found.ok()
    assert found.out.splitlines() == [f"{single[0]} {single[1]}", "", single[2]]


@pytest.mark.parametrize("seconds, said", [(0, True), (60, False)])
def test_a_log_is_told_the_progress_of_long_texts_only(tools, mixed, monkeypatch, capsys, tmp_path, seconds, said):
    monkeypatch.setattr(translate_command, "SAY_EVERY_SECONDS", seconds)
    (tmp_path / "text").write_text("a man\na dog\n")
    files = ("--data", tools.folder / "bin", "--spm", tools.folder / "spm.model")
    with (tmp_path / "text").open() as text:
        monkeypatch.setattr("sys.stdin", text)
        assert main([str(word) for word in ("translate", tools.folder / "mixed", "--cpu", *files)]) == 0
    assert ("2line" in capsys.readouterr().err) == said


# A shell in the background starts its commands with SIGINT ignored; a terminal does not.
INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from fwp_fairseq import cli
exit(cli.main())
"""


@pytest.fixture
def chat(tools, mixed):
    """Starts the command; its input and output are pipes."""
    started = []

    def start(*arguments) -> subprocess.Popen:
        given = ["--cpu", "--data", tools.folder / "bin", "--spm", tools.folder / "spm.model", *arguments]
        command = [sys.executable, "-c", INTERRUPTIBLE, "translate", tools.folder / "mixed", *LIMITS, *given]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen([str(word) for word in command], bufsize=0, env=ENVIRONMENT, **pipes))
        ends = threading.Timer(200, started[-1].kill)  # so that a command that waits does not keep the tests
        ends.daemon = True
        ends.start()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        for file in (process.stdin, process.stdout, process.stderr):
            file.close()


def test_a_line_is_answered_before_the_next_one_is_written(text, translate, chat):
    lines = text.splitlines()[:3]
    expected = translate("\n".join(lines) + "\n", *LIMITS).out.splitlines()
    process = chat()
    for line, translation in zip(lines, expected, strict=True):
        process.stdin.write(f"{line}\n".encode())
        assert process.stdout.readline().decode() == f"{translation}\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130 and process.stdout.read() == b""
    assert b"fwp: stopped\n" in process.stderr.read()


def test_nobody_reads_the_translations_any_more(text, chat):
    process = chat()
    line = text.splitlines()[0]
    process.stdin.write(f"{line}\n".encode())
    assert process.stdout.readline()
    process.stdout.close()
    process.stdin.write(f"{line}\n".encode())
    assert process.wait(30) == 0 and b"rror" not in process.stderr.read()


def test_what_came_before_a_line_that_is_not_utf8_is_translated(text, chat):
    process = chat()
    process.stdin.write(f"{text.splitlines()[0]}\n".encode() + b"gr\xfcn\n")
    process.stdin.close()
    assert process.stdout.read().count(b"\n") == 1 and process.wait(30) == 1
    said = "fwp translate: error: standard input: expected UTF-8 text, actual byte 0xfc at position 2 of line 2\n"
    assert said in process.stderr.read().decode()


def test_passages_of_a_paragraph_are_written_as_they_are_complete(text, translate, chat):
    a, b, c, d = (f"{line.strip(' .')}." for line in text.splitlines()[:4])
    single = translate(f"{a}\n{b}\n{c}\n{d}\n", *LIMITS).out.splitlines()
    process = chat("--document", "--passage", len(a.split()))
    process.stdin.write(f"{a}\n{b}\n{c}\n".encode())
    assert process.stdout.read(len(single[0].encode())).decode() == single[0]
    process.stdin.write(f"\n{d}\n".encode())
    process.stdin.close()
    assert process.stdout.read().decode() == f" {single[1]} {single[2]}\n\n{single[3]}\n"


def test_the_memory_does_not_grow_with_the_text(tools, mixed, capsys, monkeypatch):
    """The benchmark itself, with fewer lines: the last 7 parts of 10 add less than a kilobyte or so per line.

    The allocator may add 25 MiB at once, so the largest step is left out.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = ["--data", tools.folder / "bin", "--spm", tools.folder / "spm.model", "--beam", 1]
    flags = [*found, "--max-len-a", 0, "--max-len-b", 1]
    arguments = ["--lines", 40_000, "--text", "a", tools.folder / "mixed", *flags]
    assert translation_memory.main([str(word) for word in arguments]) == 0
    rows = re.findall(r"^ *([\d,]+) lines +([\d.]+) MiB", capsys.readouterr().out, re.MULTILINE)
    assert [row[0] for row in rows] == [f"{number:,}" for number in range(4000, 40_001, 4000)][: len(rows)]
    used = [float(row[1]) for row in rows[1:9]]
    steps = sorted(b - a for a, b in pairwise(used))
    assert len(used) == 8 and sum(steps[:-1]) < 20 and steps[-1] < 30, used


@pytest.mark.parametrize("task", [{"_name": "other"}, {"_name": "other", "source_lang": None, "lang_pairs": "a-b,a-c"}])
def test_a_model_of_no_language_or_of_several_does_not_translate(task):
    with pytest.raises(CommandError, match=r"lm\.pt: expected a model that translates one language, .* of task other"):
        data_of(Path("lm.pt"), task, None)


def test_languages_that_a_training_did_not_save_are_those_of_binarised_files(tmp_path, monkeypatch):
    task = {"_name": "translation", "source_lang": None, "target_lang": None, "data": str(tmp_path / "absent")}
    for language in ("de", "en"):
        (tmp_path / f"dict.{language}.txt").touch()
    with pytest.raises(CommandError, match=r"binarised files, .* are not in \S+; --data names their folder"):
        data_of(Path("model.pt"), task, tmp_path)
    (tmp_path / "valid.de-en.de.idx").touch()
    assert data_of(Path("model.pt"), task, tmp_path) == tmp_path
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/model.pt").touch()
    monkeypatch.chdir(tmp_path / "inner")
    assert data_of(checkpoint_in(Path("model.pt")), task, None) == tmp_path
    assert data_of(tmp_path / "model.pt", task, None) == tmp_path


def test_one_of_several_sentencepiece_models_has_to_be_named(tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"spm.{language}.model").touch()
    with pytest.raises(CommandError, match=r"spm\.de\.model, \S+spm\.en\.model: --spm names the one of the source"):
        pieces_of(tmp_path / "model.pt", tmp_path, None)


def test_sources_longer_than_learned_positions_are_cut(tools, translate):
    positions = ("--max-source-positions", 100, "--max-target-positions", 100)
    tools.train("learned", "--encoder-learned-pos", "--decoder-learned-pos", *positions, "--max-update", 2).ok()
    words = (tools.folder / "raw/long.en").read_text(encoding="utf-8").split()
    done = translate(f"{' '.join(words[:300])}\n{' '.join(words[:12])}\n", *LIMITS, model="learned").ok()
    assert len(done.out.splitlines()) == 2
    assert "sources cut at 100 tokens, the positions of the model: 1\n" in done.err


@pytest.fixture
def refused(tools, mixed, capsys):
    """Runs the command in this process; returns the one line that it says."""
    import_plugin()

    def run(*arguments, model: str = "mixed", spm="spm.model") -> str:
        files = ("--data", tools.folder / "bin", "--spm", tools.folder / spm)
        capsys.readouterr()
        assert main([str(word) for word in ("translate", tools.folder / model, "--cpu", *files, *arguments)]) in (1, 2)
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1, said.err
        return said.err

    return run


@pytest.mark.parametrize(
    "arguments, keywords, said",
    [
        (["--beam", 0], {}, "--beam 0: expected 1 or more"),
        (["--nbest", 5], {}, "--nbest 5: expected at most --beam 4"),
        ([], {"model": "raw"}, "expected a checkpoint, or a folder with one of checkpoint_best.pt"),
        ([], {"spm": "absent.model"}, "absent.model was not found; --spm names the file"),
        (["--max-len-b", 0], {}, "--max-len-b 0: expected 1 or more"),
        (["--max-len-a", -1], {}, "--max-len-a -1.0: expected 0 or more"),
        (["--max-len-a", "inf"], {}, "--max-len-a inf: expected at most 1,000,000,000"),
        (["--lenpen", "nan"], {}, "--lenpen nan: expected -10 or more"),
        (["--lenpen", "1e300"], {}, "--lenpen 1e+300: expected at most 10"),
        (["--max-tokens", 10**23], {}, f"--max-tokens {10**23}: expected at most 1,000,000,000"),
        (["--source-window", 0], {}, "--source-window 0: expected 1 or more"),
        (["--passage", 9], {}, "--passage 9 cuts the paragraphs of --document; expected both or none"),
        (["--source-window", 4], {}, "--source-window 4: the model has no softmax cross-attention"),
        (["--data", "absent"], {}, "dict.en.txt and dict.de.txt are not in absent; --data names their folder"),
    ],
)
def test_what_is_refused(refused, arguments, keywords, said):
    assert said in refused(*arguments, **keywords)


def test_an_architecture_of_another_plugin(tools, mixed, refused):
    state = tools.load("mixed/checkpoint_best.pt")
    state["cfg"]["model"]["_name"] = "of_another_plugin"
    torch.save(state, tools.folder / "another.pt")
    said = "another.pt: architecture of_another_plugin: expected one of fairseq or of this plugin"
    assert said in refused(model="another.pt")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_parameter_that_is_not_finite_is_named(tools, mixed, refused, value):
    state = tools.load("mixed/checkpoint_best.pt")
    state["model"]["decoder.layers.0.fc2.weight"][0, 0] = value
    torch.save(state, tools.folder / "not_finite.pt")
    said = "not_finite.pt: 1 of 2048 numbers in decoder.layers.0.fc2.weight are NaN or infinite"
    assert said in refused(model="not_finite.pt")


def test_scores_that_are_no_numbers_are_said(tools, mixed, refused, monkeypatch):
    state = tools.load("mixed/checkpoint_best.pt")
    for parameter in state["model"].values():
        if parameter.is_floating_point():
            parameter.mul_(1e12)
    torch.save(state, tools.folder / "huge.pt")
    (tools.folder / "line").write_text("A dog runs.\n")
    with open(tools.folder / "line") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert "huge.pt: its scores are no numbers, the model diverged" in refused(model="huge.pt")


def test_everything_is_found_beside_the_checkpoint(tools, mixed, text, translate, tmp_path):
    """In a folder of any name, like that of `fwp train`, from any other folder."""
    model = tmp_path / "a model's folder ä"
    (model / "checkpoints").mkdir(parents=True)
    for name in ("mixed/checkpoint_best.pt", "bin/dict.en.txt", "bin/dict.de.txt", "spm.model"):
        os.link((tools.folder / name).resolve(), model / name.split("/")[-1].replace("check", "checkpoints/check"))
    line, greedy = text.splitlines()[0], ("--beam", 1)
    found = tools.command("fwp", "translate", model, "--cpu", *greedy, folder=tmp_path, stdin=line).ok()
    usual, short = (translate(line, *greedy, "--max-len-a", a, "--max-len-b", b).out for a, b in ((2, 50), (0.3, 3)))
    assert found.out == usual != short
    found = tools.command("fwp", "translate", model.rename(tmp_path / "a:b"), "--cpu", folder=tmp_path, stdin=line)
    assert found.status == 1 and "a:b: expected a path without ':'" in found.err
