"""`fwp train` on texts of one's own: resumed, refused, and in folders of any name."""

import shutil
import subprocess

import pytest

from fwp_fairseq.cli import main
from fwp_fairseq.cli.corpus import Corpus, recipe
from fwp_fairseq.cli.errors import CommandError, UsageError
from tests.fairseq_tools.conftest import ENVIRONMENT


@pytest.fixture
def texts(tools, tmp_path):
    """40 sentences, which are all three sets, with a byte order mark and Windows' line ends in one file."""
    folder = tmp_path / "my 'own' texts"
    folder.mkdir()
    for part in ("train", "valid", "test"):
        for language in ("en", "de"):
            shutil.copy(tools.folder / "raw" / f"val.{language}", folder / f"{part}.{language}")
    lines = (folder / "train.en").read_text(encoding="utf-8").replace("\n", "\r\n")
    (folder / "train.en").write_text("\ufeff" + lines, encoding="utf-8", newline="")
    return folder


def run(tools, folder, *arguments):
    words = [
        tools.forked.bin / "fwp",
        "train",
        "--texts",
        folder.name,
        "--source",
        "en",
        "--target",
        "de",
        "--out",
        "out of it",
        "--cpu",
        *arguments,
    ]
    return subprocess.run(
        [str(word) for word in words], cwd=folder.parent, capture_output=True, text=True, env=ENVIRONMENT, timeout=600
    )


def test_the_same_command_goes_on(tools, texts):
    first = run(tools, texts, "--max-update", 3)
    assert first.returncode == 0, first.stderr
    assert "fairseq_cli.preprocess" in first.stdout and "update 3: loss on valid" in first.stdout
    dictionary = (texts.parent / "out of it/dict.en.txt").read_text(encoding="utf-8")
    assert "\ufeff" not in dictionary and "\r" not in dictionary
    more = run(tools, texts, "--max-update", 5, "--", "--dropout", "0")
    assert more.returncode == 0, more.stderr
    assert "fairseq_cli.preprocess" not in more.stdout and "update 5: loss on valid" in more.stdout
    log = (texts.parent / "out of it/train.log").read_text()
    assert log.count("loading train data for epoch 1") == 1  # the second one went on
    (texts / "test.de").write_text("anders\n" * 40, encoding="utf-8")
    other = run(tools, texts, "--max-update", 5)
    assert other.returncode == 2 and "holds a training on other texts or pieces" in other.stderr


def test_a_training_that_fails_says_where_to_look(tools, texts):
    found = run(tools, texts, "--", "--lr", "much")
    assert found.returncode == 1 and found.stderr.count("\n") == 1 and "train.log says why" in found.stderr
    assert "much" in (texts.parent / "out of it/train.log").read_text()


def test_files_that_do_not_fit_are_named(texts, capsys):
    (texts / "valid.de").write_text("eins\n", encoding="utf-8")
    with pytest.raises(CommandError, match=r"valid\.en has 40 lines and .*valid\.de has 1 lines"):
        Corpus(texts, ("en", "de"))
    (texts / "valid.de").unlink()
    with pytest.raises(CommandError, match=r"valid\.de: no such file"):
        Corpus(texts, ("en", "de"))
    (texts / "valid.de").write_bytes(b"\xff\n" * 40)
    with pytest.raises(CommandError, match=r"valid\.de is not UTF-8"):
        Corpus(texts, ("en", "de"))
    assert main(["train", "--texts", str(texts), "--source", "en", "--target", "de", "--out", "a:b"]) == 2
    assert "a:b: expected a path without ':', where fairseq cuts paths" in capsys.readouterr().err
    with pytest.raises(UsageError, match="--source and --target are both en"):
        Corpus(texts, ("en", "en"))


def test_settings_fit_the_size(texts):
    small = recipe(Corpus(texts, ("en", "de")), None, None)
    assert small["--arch"] == "fwp_transformer_tiny_hybrid" and small["--warmup-updates"] == "200"
    for language in ("en", "de"):
        (texts / f"train.{language}").write_text("w " * 500 + "\n" + "ein Satz von zwölf Wörtern und mehr\n" * 300_000)
    large = recipe(Corpus(texts, ("en", "de")), None, None)
    assert (
        large["--arch"] == "fwp_transformer_iwslt_de_en_hybrid"
        and large["--warmup-updates"] > small["--warmup-updates"]
    )
    assert int(large["--max-source-positions"]) == int(large["--max-target-positions"]) == 2064
    assert int(large["--max-tokens"]) == 8000 and recipe(Corpus(texts, ("en", "de")), "x", 9)["--max-update"] == "9"
