"""Runs the commands of README.md and of docs as they are printed there."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from tests.pages import ROOT, block, command


@pytest.fixture
def folder(tools, tmp_path):
    """A folder with data-bin, in which 40 sentences are all three sets."""
    shutil.copytree(tools.folder / "bin", tmp_path / "data-bin")
    (tmp_path / "corpus").mkdir()
    shutil.copy(tools.folder / "raw/val.de", tmp_path / "corpus/test.de")
    for path in (tmp_path / "data-bin").glob("valid.*"):  # 40 training pairs are enough
        shutil.copy(path, path.with_name(path.name.replace("valid", "train")))
    return tmp_path


@pytest.fixture
def texts(tools, tmp_path):
    """A folder with `corpus`."""
    return tools.write_texts(tmp_path / "corpus").parent


def test_own_texts(tools, texts):
    """With fewer updates than fit."""
    code = block("docs/usage.md", "fwp train --texts corpus").replace(
        "--out hybrid", "--out hybrid --max-update 4 --cpu"
    )
    done = tools.shell(code, texts)
    last = r"^epoch 4, 4 of 4 updates: training loss [\d.]+, validation loss [\d.]+$"
    assert re.search(last, done.out, re.M), done.out
    assert len((texts / "translations.de").read_text().splitlines()) == 5
    scores = re.findall(r"^BLEU\S* = (\S+)", done.out, re.M)
    assert len(scores) == 2 and scores[0] == scores[1]  # of fwp train, and of the commands after it
    assert f"fwp translate {texts / 'hybrid/checkpoints'} < FILE" in done.out
    done = tools.shell(block("docs/usage.md", "fairseq-generate hybrid"), texts)
    translated = (texts / "translations" / "generate-test.txt").read_text()
    assert len(re.findall(r"^H-\d+\t", translated, re.M)) == 5
    assert re.search(r"^BLEU\S* = \d", done.out, re.M), done.out[-2000:]


def test_own_texts_in_a_checkout(tools, texts):
    """Whose environment is there."""
    (texts / ".venv").mkdir()
    (texts / ".venv/bin").symlink_to(tools.forked.bin)
    (texts / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/quickstart.sh", texts / "scripts")
    (texts / "scripts/environment.sh").write_text("#!/bin/sh\n")
    (texts / "scripts/environment.sh").chmod(0o755)
    (texts / "text.en").write_text("A dog runs .\n")
    code = block("README.md", "scripts/quickstart.sh --texts corpus")
    done = tools.shell(code.replace("runs/mine\n", "runs/mine --max-update 2 --cpu\n"), texts)
    assert "\nBLEU|" in done.out and "\nscores " in done.out
    assert done.out.rpartition("--max-update\n")[2].count("\n") == 2  # an empty line, and the translation


def test_conversion_of_own_texts(tools, texts):
    """With few updates; the control makes as many as the converted model."""
    code = block("docs/conversion.md", "fwp train --texts corpus").replace("--target de", "--target de --cpu")
    assert code.count(" --finetune-from ") == 2
    done = tools.shell(code.replace("--target de --cpu", "--target de --cpu --max-update 2"), texts)
    assert "hedgehog-window" in done.out and "p = " in done.out.rpartition("BLEU (")[2]
    assert done.out.count(" (fine-tuned)") == 2
    for name in ("fast", "further"):
        assert len((texts / name / "translations.de").read_text().splitlines()) == 5
        state = torch.load(texts / name / "checkpoints/checkpoint_last.pt", weights_only=True)
        assert state["optimizer_history"][-1]["num_updates"] == 2
    control = f"bleu --hypotheses CONTROL/translations.de {texts}/fast/translations.de --references"
    program = r"((\S*/)?fwp|\S+ -m fwp_fairseq)"  # what a shell finds from here
    assert re.search(rf"\ncomparison   {program} {re.escape(control)} ", done.out)


def test_the_training_of_the_first_screen(tools, folder):
    line = command("README.md", "fairseq-train data-bin")
    flags = "--optimizer adam --max-tokens 2500 --max-update 2 --save-dir checkpoints"
    tools.shell(line.replace("...", flags), folder)
    assert (folder / "checkpoints/checkpoint_best.pt").is_file()


def test_documents(tools, tmp_path):
    """Passages are trained on and translated; of sentences of which every fifth line is empty."""
    (tmp_path / "documents").mkdir()
    for language in ("de", "en"):
        lines = (tools.folder / "raw" / f"val.{language}").read_text(encoding="utf-8").splitlines()[:39]
        text = "".join(f"{'' if n % 5 == 4 else line}\n" for n, line in enumerate(lines))
        for part in ("train", "valid", "test"):
            (tmp_path / "documents" / f"{part}.{language}").write_text(text, encoding="utf-8")
    (tmp_path / "page.en").write_text(text, encoding="utf-8")
    code = block("docs/documents.md", "fwp train --texts documents").replace(
        "passages\n", "passages --max-update 3 --cpu\n"
    )
    near = block("docs/documents.md", "fwp translate passages/checkpoints --document --passage 150 --source-window")
    done = tools.shell(code + near.replace("page.de", "near.de").replace("window 64", "window 4"), tmp_path)
    assert "checkpoints --document --passage 150 < FILE" in done.out
    assert len((tmp_path / "passages/translations.de").read_text().splitlines()) == 8  # a passage of each document
    for name in ("page.de", "near.de"):
        assert [bool(line) for line in (tmp_path / name).read_text().splitlines()] == [True, False] * 7 + [True]


BEFORE = block("docs/conversion.md", 'fairseq-generate data-bin --user-dir "$(fwp path)" --path checkpoints/')
IN_THE_DECODER = block(
    "docs/conversion.md",
    "fwp convert --input checkpoints/checkpoint_best.pt --output converted.pt --fwp-feature-map softmax",
)
AFTER = block("docs/conversion.md", 'fairseq-generate data-bin --user-dir "$(fwp path)" --path finetuned/')
EVERYWHERE = block(
    "docs/conversion.md",
    "fwp convert --input checkpoints/checkpoint_best.pt --output converted.pt \\\n    --fwp-feature-map hedgehog",
)


@pytest.mark.parametrize(
    "code, arch, attention, written, updates",
    [
        (BEFORE + IN_THE_DECODER + AFTER, "transformer_iwslt_de_en", "softmax", (400,), {"finetuned": 5}),
        (EVERYWHERE, "fwp_transformer_tiny", "hedgehog --fwp-d-dot 128", (150, 260), {"maps": 15, "finetuned": 5}),
    ],
)
def test_from_softmax_to_fast_weights(tools, folder, code, arch, attention, written, updates):
    """With fewer updates and shorter outputs than are printed there; fairseq's own model is one of both."""
    sizes = " ".join(
        f"--{part}-layers 1 --{part}-embed-dim 64 --{part}-ffn-embed-dim 64" for part in ("encoder", "decoder")
    )
    flags = "--fwp-feature-map softmax" if arch.startswith("fwp") else sizes
    flags += " --optimizer adam --lr 1e-3 --max-tokens 2500 --max-epoch 2 --save-dir checkpoints"
    tools.shell(f'fairseq-train data-bin --user-dir "$(fwp path)" --task translation --arch {arch} {flags}', folder)
    for given, number in zip(written, updates.values(), strict=True):
        assert f"-update {given} " in code
        code = code.replace(f"-update {given} ", f"-update {number} ")
    # The log of a forked tool does not go to its standard error, where this one's is searched.
    code = code.replace("fairseq-interactive", str(Path(sys.executable).parent / "fairseq-interactive"))
    done = tools.shell(code.replace("1000", "30"), folder)
    (printed,) = re.findall(r"--finetune-from-model converted.pt (.*)", (folder / "convert.log").read_text())
    assert f"--fwp-feature-map {attention}" in printed
    for name, number in updates.items():
        state = torch.load(folder / name / "checkpoint_last.pt", weights_only=True)
        assert state["optimizer_history"][-1]["num_updates"] == number
    if "maps" not in updates:
        assert "BLEU|nrefs:1" in done.out and "(p = " in done.out
        assert len(re.findall(r"translation time: [\d.]+$", done.out, re.M)) == 2
        return
    printed = done.out + done.err
    distances = [float(loss) for loss in re.findall(r"\| valid \|.*? \| loss ([\d.]+) .*\| loss_cross ", printed)]
    assert len(distances) > 4 and 0 < distances[-1] < 0.8 * distances[0]
