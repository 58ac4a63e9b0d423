"""Runs the commands of README.md and of docs as they are printed there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.pages import ROOT, block, command


def shell(tools, code, folder, fresh=False):
    """Runs the code in a folder, its commands forked unless ``fresh``; returns its output."""
    done = subprocess.run(
        ["bash", "-euc", code],
        cwd=folder,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent if fresh else tools.forked.bin}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


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
    """A folder with `corpus`, of 40 sentences that are all three sets."""
    (tmp_path / "corpus").mkdir()
    for part in ("train", "valid", "test"):
        for language in ("en", "de"):
            shutil.copy(tools.folder / "raw" / f"val.{language}", tmp_path / "corpus" / f"{part}.{language}")
    return tmp_path


def test_own_texts(tools, texts):
    """With fewer updates than fit."""
    code = block("docs/usage.md", "fwp train --texts corpus").replace(
        "--out hybrid", "--out hybrid --max-update 4 --cpu"
    )
    done = shell(tools, code, texts)
    last = r"^epoch 4, 4 of 4 updates: training loss [\d.]+, validation loss [\d.]+$"
    assert re.search(last, done.stdout, re.M), done.stdout
    assert len((texts / "translations.de").read_text().splitlines()) == 40
    scores = re.findall(r"^BLEU\S* = (\S+)", done.stdout, re.M)
    assert len(scores) == 2 and scores[0] == scores[1]  # of fwp train, and of the commands after it
    assert f"fwp translate {texts / 'hybrid/checkpoints'} < FILE" in done.stdout
    done = shell(tools, block("docs/usage.md", "fairseq-generate hybrid"), texts)
    translated = (texts / "translations" / "generate-test.txt").read_text()
    assert len(re.findall(r"^H-\d+\t", translated, re.M)) == 40
    assert re.search(r"^BLEU\S* = \d", done.stdout, re.M), done.stdout[-2000:]


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
    done = shell(tools, code.replace("runs/mine\n", "runs/mine --max-update 2 --cpu\n"), texts)
    assert "\nBLEU|" in done.stdout and "\nscores " in done.stdout
    assert done.stdout.rpartition("--max-update\n")[2].count("\n") == 2  # an empty line, and the translation


def test_the_training_of_the_first_screen(tools, folder):
    line = command("README.md", "fairseq-train data-bin")
    flags = "--optimizer adam --max-tokens 2500 --max-update 2 --save-dir checkpoints"
    shell(tools, line.replace("...", flags), folder)
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
    done = shell(tools, code + near.replace("page.de", "near.de").replace("window 64", "window 4"), tmp_path)
    assert "checkpoints --document --passage 150 < FILE" in done.stdout
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
    shell(tools, f'fairseq-train data-bin --user-dir "$(fwp path)" --task translation --arch {arch} {flags}', folder)
    for given, number in zip(written, updates.values(), strict=True):
        assert f"-update {given} " in code
        code = code.replace(f"-update {given} ", f"-update {number} ")
    # The log of a forked tool does not go to its standard error, where this one's is searched.
    code = code.replace("fairseq-interactive", str(Path(sys.executable).parent / "fairseq-interactive"))
    done = shell(tools, code.replace("1000", "30"), folder)
    (printed,) = re.findall(r"--finetune-from-model converted.pt (.*)", (folder / "convert.log").read_text())
    assert f"--fwp-feature-map {attention}" in printed
    for name, number in updates.items():
        state = torch.load(folder / name / "checkpoint_last.pt", weights_only=True)
        assert state["optimizer_history"][-1]["num_updates"] == number
    if "maps" not in updates:
        assert "BLEU|nrefs:1" in done.stdout and "(p = " in done.stdout
        assert len(re.findall(r"translation time: [\d.]+$", done.stdout, re.M)) == 2
        return
    printed = done.stdout + done.stderr
    distances = [float(loss) for loss in re.findall(r"\| valid \|.*? \| loss ([\d.]+) .*\| loss_cross ", printed)]
    assert len(distances) > 4 and 0 < distances[-1] < 0.8 * distances[0]


EXAMPLES = re.findall(r"^\| [^|]+ \| `(--fwp-[^`]+)` \|", (ROOT / "docs/usage.md").read_text(), re.M)
EXAMPLES = [flags for flags in EXAMPLES if " " in flags]
assert len(EXAMPLES) > 5


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_of_flags(tools, number):
    """Each gives a model with heads of 64 that trains."""
    sizes = [f"--{part}-embed-dim 128 --{part}-attention-heads 2" for part in ("encoder", "decoder")]
    done = tools.train(
        f"example-{number}", *" ".join(sizes).split(), *EXAMPLES[number].split(), "--max-update", 2, "--no-save"
    ).ok()
    assert re.search(r"num_updates\W+2\b", done.out), done.out[-2000:]
