"""`fwp train` on texts of one's own: resumed, refused, and in folders of any name."""

import fcntl
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fwp_fairseq.compat  # noqa: F401  (of which checkpoints need the numbers of numpy)
from fwp_fairseq.cli import main
from fwp_fairseq.cli.corpus import Corpus
from fwp_fairseq.cli.errors import CommandError, UsageError
from fwp_fairseq.cli.recipe import SETTINGS, Recipe
from fwp_fairseq.cli.training import lengths_of


@pytest.fixture
def texts(tools, tmp_path):
    """With a byte order mark and Windows' line ends in one file."""
    folder = tools.write_texts(tmp_path / "my 'own' texts")
    lines = (folder / "train.en").read_text(encoding="utf-8").replace("\n", "\r\n")
    (folder / "train.en").write_text("\ufeff" + lines, encoding="utf-8", newline="")
    return folder


def run(tools, texts, *arguments):
    flags = ("--texts", texts.name, "--source", "en", "--target", "de", "--cpu", "--out", "out of it")
    return tools.command("fwp", "train", *flags, *arguments, folder=texts.parent)


def test_the_same_command_goes_on(tools, texts):
    (texts.parent / "out of it").mkdir()
    for name in ("preprocess.log", "dict.en.txt"):  # of a call that was killed while it binarised the texts
        (texts.parent / "out of it" / name).touch()
    first = run(tools, texts, "--max-update", 3).ok()
    assert "fairseq_cli.preprocess" in first.out
    losses = r"updates: training loss [\d.]+, validation loss \d"
    assert re.search(f", 3 of 3 {losses}", first.out)
    dictionary = (texts.parent / "out of it/dict.en.txt").read_text(encoding="utf-8")
    assert "\ufeff" not in dictionary and "\r" not in dictionary
    bleu = ("--eval-bleu", "--eval-bleu-args", '{"max_len_b": 1}')
    more = run(tools, texts, "--max-update", 5, "--", "--dropout", "0", *bleu).ok()
    assert "fairseq_cli.preprocess" not in more.out and re.search(f", 5 of 5 {losses}", more.out)
    log = (texts.parent / "out of it/train.log").read_text()
    assert log.count("loading train data for epoch 1") == 1  # the second one went on
    assert '"valid_bleu"' in log and "reached the limit" not in log  # which is of decoding, and not of validations
    state = torch.load(texts.parent / "out of it/checkpoints/checkpoint_last.pt", weights_only=True)
    assert set(state["extra_state"]["early_stopping"]) == {"best", "num_runs"}  # --patience counts on
    assert "no update was left to make" not in more.out
    third = run(tools, texts, "--max-update", 5, "--", "--dropout", "0.5").ok()
    assert "no update was left to make: the results are those of the earlier call, with its flags" in third.out
    tuned = run(tools, texts, "--finetune-from", "out of it")
    assert tuned.status == 2 and "holds a training without --finetune-from; expected the same here" in tuned.err
    elsewhere = run(tools, texts, "--data", "elsewhere")
    assert elsewhere.status == 2 and "holds prepared texts of its own; expected no --data" in elsewhere.err
    (texts / "test.de").write_text("anders\n" * 5, encoding="utf-8")
    other = run(tools, texts, "--passage", 5)
    assert other.status == 2 and "holds a training with other texts, passage None, not passage 5" in other.err


def ended(pid: int) -> bool:
    """Returns True if the process is gone, or gone but for its parent's asking how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_call_that_is_killed_takes_its_training_along():
    training = "import os, time\nwhile True: print(os.getpid(), flush=True); time.sleep(0.05)"
    code = f"follow([sys.executable, '-c', {training!r}], sys.stdout, Progress(0, 1, print))"
    code = f"import sys; from fwp_fairseq.cli.commands import Progress, follow; {code}"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as call:
        pid = int(call.stdout.readline())
        call.kill()
    deadline = time.monotonic() + 60
    while not ended(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_training_that_fails_says_why(tools, texts):
    found = run(tools, texts, "--", "--encoder-embed-dim", "33")
    assert found.status == 1 and found.err.count("\n") == 2  # one is about the byte order mark
    assert re.search("train.log ends with: .*33", found.err), found.err


def test_a_folder_in_use_is_refused(texts, capsys):
    (texts / "out").mkdir()
    with open(texts / "out/.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        words = ["--texts", texts, "--source", "en", "--target", "de", "--out", texts / "out"]
        assert main(["train", *map(str, words)]) == 1
    assert f"--out {texts / 'out'} is in use by another fwp train" in capsys.readouterr().err
    assert [path.name for path in (texts / "out").iterdir()] == [".lock"]


def test_files_that_do_not_fit_are_named(texts):
    (texts / "valid.de").write_text("eins\n", encoding="utf-8")
    with pytest.raises(CommandError, match=r"^lines of .*valid\.en \(40\) and .*valid\.de \(1\): expected equal"):
        Corpus(texts, ("en", "de"))
    (texts / "valid.de").unlink()
    (texts / "test.en").rename(texts / "away")
    there = r"it has away, test\.de, train\.de, train\.en, valid\.en$"
    with pytest.raises(CommandError, match=rf"a folder with valid\.de, test\.en, plain or with \.gz; {there}"):
        Corpus(texts, ("en", "de"))
    for folder, what in (texts / "nowhere", "no folder"), (texts / "away", "a file"):
        with pytest.raises(UsageError, match=f"--texts {folder}: expected a folder with train.en, .*; this is {what}$"):
            Corpus(folder, ("en", "de"))
    (texts / "away").rename(texts / "test.en")
    (texts / "valid.de.gz").write_bytes(b"no gzip")
    with pytest.raises(CommandError, match=r"valid\.de\.gz: expected gzip, as its name says"):
        Corpus(texts, ("en", "de"))
    (texts / "valid.de").write_bytes(b"eins\r\n" * 20 + b"zwei \xff\n" * 20)
    with pytest.raises(
        CommandError, match=r"valid\.de: expected UTF-8 text, actual byte 0xff at position 5 of line 21$"
    ):
        Corpus(texts, ("en", "de"))
    shutil.copy(texts / "valid.en", texts / "valid.de")
    (texts / "test.de").write_text("\n" * 5)
    with pytest.raises(CommandError, match="test: no line has text in both en and de"):
        Corpus(texts, ("en", "de"))
    with pytest.raises(UsageError, match="--source and --target are both en"):
        Corpus(texts, ("en", "en"))


@pytest.mark.parametrize(
    "words, said",
    [
        (["a:b"], "a:b: expected a path without ':', where fairseq cuts"),
        (["a,b"], "a,b: expected a path without ',', where"),
        (["${a}"], "${a}: expected a path without '${', where fairseq fills"),
        (["x", "--vocabulary", "0"], "--vocabulary 0: expected 1 or more"),
        (["back\\"], "back\\: expected a path without '\\', where fairseq takes the next character"),
        (["x", "--data", "a:b"], "--data "),
        (["x", "--minutes", "0"], "--minutes 0: expected more than 0"),
        (["x", "--tokenize", "13b"], "--tokenize 13b: expected one of none, zh"),
        (["x", "--finetune-from", "y", "--baseline"], "--finetune-from and --baseline: the checkpoint has its own"),
        (["x", "--baseline", "--arch", "transformer_iwslt_de_en"], "expected an architecture of this plugin"),
        (["x", "--arch", "fwp_lm"], "--arch fwp_lm does not translate; expected a translation model"),
        (["x", "--", "--save-dir", "y"], "--save-dir after -- contradicts fwp train, which sets it itself"),
        (["x", "--baseline", "--", "--arch=lstm"], "--arch=lstm after -- contradicts fwp train, which"),
        (["x", "--", "--no-last-checkpoints"], "--no-last-checkpoints after --: the same command could not continue"),
        (["x", "--", "--restore-file", "y.pt"], "--restore-file after --: the same command could not continue"),
        (["x", "--", "--reset-optimizer"], "--reset-optimizer after --: the same command could not continue"),
        (["x", "--", "--log-format=simple"], "--log-format=simple after -- contradicts fwp train"),
        ([""], "argument --out: expected a path, got an empty text"),
        (["x", "--data", ""], "argument --data: expected a path, got an empty text"),
        (["x", "--", "-a", "fwp_transformer"], "-a after -- contradicts fwp train, which sets it itself"),
        (["x", "--", "-sfr"], "-sfr after -- contradicts fwp train"),
        (["x", "--", "--user-dir", "y"], "--user-dir after -- contradicts fwp train"),
        (["x", "--", "--max-update", "y"], "argument --max-update: invalid int value: 'y'"),
        (["x", "--", "--lr", "much"], "argument --lr: invalid <lambda> value: 'much'"),
        (["x", "--", "--dropuot", "0.3"], "unrecognized arguments: --dropuot 0.3 (among the flags after --"),
        (["x", "--", "--dropout", "y"], "argument --dropout: invalid float value: 'y' (among the flags after --"),
        (["x", "--", "--criterion", "nosuch"], "argument --criterion: invalid choice: 'nosuch'"),
        (["x", "--", "--fwp-decoder", "nosuch"], "--fwp-decoder nosuch: "),
        (["x", "--", "--dropout", "1.5"], "--dropout 1.5: expected at least 0 and less than 1"),
        (["x", "--", "--label-smoothing", "2"], "--label-smoothing 2: expected at least 0 and less than 1"),
        (["x", "--", "--dataset-impl", "raw"], "--dataset-impl after -- contradicts fwp train"),
        (["x", "--", "--fwp-decoder", "delta,wnidow=8"], "--fwp-decoder delta,wnidow=8: "),
        (["x", "--source=-en"], "--source '-en': expected the suffix of a file"),
        (["x", "--target", "a/de"], "--target 'a/de': expected the suffix of a file"),
        (["x", "--target", ""], "--target '': expected the suffix of a file"),
        (["my", "folder"], "folder: expected flags alone; those of fairseq-train come after --"),
        (["train.en"], "train.en: there is a file, expected a folder"),
        (["train.en/x"], "train.en/x: there is a file, expected a folder"),
    ],
)
def test_what_is_refused(texts, capsys, monkeypatch, words, said):
    monkeypatch.chdir(texts)
    assert main(["train", "--texts", str(texts), "--source", "en", "--target", "de", "--out", *words]) == 2
    assert said in capsys.readouterr().err and not (texts / "x").exists() and not (texts / "my").exists()


def test_a_seed_that_sacrebleu_cannot_use_is_refused_before_the_trainings(texts, capsys, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "x")
    words = ["--texts", str(texts), "--source", "en", "--target", "de", "--out", str(texts / "x"), "--baseline"]
    assert main(["train", *words]) == 2
    assert "SACREBLEU_SEED x: expected none" in capsys.readouterr().err and not (texts / "x").exists()


def test_settings_fit_the_size():
    small, large = Recipe(33_000, [20, 3000], 45_000), Recipe(4_000_000, [20, 1500], 6_000_000)
    flags = small.flags(None, None)
    assert flags["--arch"] == "fwp_transformer_tiny_hybrid" and flags["--warmup-updates"] == "200"
    assert flags["--dropout"] == "0.3" and large.flags(None, None)["--dropout"] == "0.1"
    assert flags["--max-source-positions"] == "2048"
    flags = large.flags(None, None)
    assert flags["--arch"] == "fwp_transformer_iwslt_de_en_hybrid" and flags["--warmup-updates"] == "1800"
    assert flags["--max-update"] == "9000" and small.flags(None, None)["--max-update"] == "1000"  # 12 epochs; the least
    assert Recipe(10**9, [20], 10**9).flags(None, None)["--max-update"] == "100000"
    assert SETTINGS[SETTINGS.index("--patience") + 1] == "10"
    assert flags["--max-target-positions"] == "1500"
    more = large.flags("x", 9)
    assert more["--max-update"] == "9" and more["--warmup-updates"] == "1800"  # as of a longer training that goes on
    command = ["train", "--max-source-positions", "1500", "--max-target-positions", "1500", "--max-update", "9"]
    given = lengths_of([*command, "--max-source-positions=9000", "--max-update", "7"])
    assert (given.max_source_positions, given.max_target_positions, given.max_update) == (9000, 1500, 7)
    few = Recipe(150_000, [20], 200_000).flags(None, None)
    assert few["--dropout"] == "0" and few["--arch"] == "fwp_transformer_tiny_hybrid"


def test_passages_have_decay_and_positions_unless_attention_is_chosen():
    recipe = Recipe(150_000, [20], 200_000, passages=True)
    assert recipe.attention(None, ["--lr", "1"])["--fwp-decoder"] == "gated-delta,conv-size=4"
    assert recipe.sinusoids(recipe.attention(None, []), ["--lr", "1"]) == ["--no-token-positional-embeddings"]
    assert recipe.sinusoids(recipe.attention(None, []), ["--encoder-learned-pos"]) == recipe.sinusoids({}, []) == []
    assert recipe.attention("fwp_transformer_tiny", []) == recipe.attention(None, ["--fwp-cross=elu"]) == {}
    assert (
        replace(recipe, further=True).attention(None, []) == replace(recipe, passages=False).attention(None, []) == {}
    )


def test_every_character_can_be_a_piece(texts, tmp_path):
    assert Corpus(texts, ("en", "de")).vocabulary == 4000
    lines = ["".join(map(chr, range(0x4E00 + 125 * n, 0x4E00 + 125 * (n + 1)))) for n in range(40)]
    (texts / "train.de").write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = Corpus(texts, ("en", "de"))
    assert corpus.vocabulary > 7000
    assert corpus.write_pieces(tmp_path, corpus.learn_pieces(corpus.vocabulary)) == corpus.vocabulary
    with pytest.raises(CommandError, match="--vocabulary 4000: SentencePiece refuses it"):
        corpus.learn_pieces(4000)


def test_passages_end_at_empty_lines_and_at_their_size(tools, texts):
    """The test set is scored in the same passages."""
    en, de = ["One two.", "Three.", "", "Four.", "Five six seven.", "Eight"], ["Eins.", "Drei.", "", "4", "5", "8"]
    for part in ("train", "valid", "test"):
        for language, lines in (("en", en), ("de", de)):
            more = [*lines * 19, "", "w " * 2100, ""] if part == "train" else []
            (texts / f"{part}.{language}").write_text("\n".join([*lines, *more]) + "\n")
    assert Corpus(texts, ("en", "de"), 3).pairs["test"] == [
        ("One two. Three.", "Eins. Drei."), ("Four.", "4"), ("Five six seven.", "5"), ("Eight", "8"),
    ]  # fmt: skip
    assert len(Corpus(texts, ("en", "de")).pairs["valid"]) == 5 and len(Corpus(texts, ("en", "de")).pairs["test"]) == 6
    done = run(tools, texts, "--passage", 3, "--max-update", 2, "--vocabulary", 60).ok()
    assert "\n  left out: 1 of 81 lines to train on, with more than 2048 tokens;" in done.out
    assert len((texts.parent / "out of it/translations.de").read_text().splitlines()) == 4
    assert "checkpoints' --document --passage 3 < FILE" in done.out
    attention = "--fwp-encoder gated-delta,passes=both-ways,conv-size=4 --fwp-decoder gated-delta,conv-size=4"
    attention += " --fwp-cross softmax-rotary --no-token-positional-embeddings"
    assert f"  attention {attention} (best on passages)" in done.out and f" {attention} " in done.out
