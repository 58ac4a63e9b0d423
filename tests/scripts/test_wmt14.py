"""Tests the preset wmt14: what is made of archives that this test makes up, and batches on any number of GPUs."""

import io
import tarfile
from dataclasses import replace

import pytest
from sacrebleu.dataset import DATASETS

from scripts.common.commands import flags_of
from scripts.common.errors import RecipeError
from scripts.experiments.bleu_vs_d_dot import presets, wmt14
from scripts.translation import commands
from tests.scripts.test_bleu_vs_d_dot import run_of

PAIRS = {
    "europarl": [("The house is old – isn't it?", "Das Haus ist alt, nicht wahr?")] * 40,
    "commoncrawl": [("One\u2028line", "Eine\u2028Zeile"), ("", "Leer"), ("so", "viel " * 30), ("w " * 300,) * 2] * 10,
    "nc-v12": [("“Quoted” & so on", "„Zitiert“ & so weiter")] * 20,
    "news": [("What’s up?", "Was ist los?")] * 3,
}


def packed(member, pairs, more=("", "")):
    """A .tgz with both sides of a text."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz") as tar:
        for column, language in enumerate(wmt14.LANGUAGES):
            content = ("".join(f"{pair[column]}\n" for pair in pairs) + more[column]).encode()
            entry = tarfile.TarInfo(f"{member}.{language}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return memory.getvalue()


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """Archives in FWP_DATA, whose lengths are the published ones, and sacreBLEU's sets."""
    folder, moved = tmp_path / "own/wmt14", []
    folder.mkdir(parents=True)
    for archive, pairs in zip(wmt14.ARCHIVES, PAIRS.values(), strict=False):
        (folder / archive.file).write_bytes(packed(archive.member, pairs))
        moved.append(replace(archive, pairs=archive.pairs and len(pairs)))
    for column, language in enumerate(wmt14.LANGUAGES):
        (tmp_path / language).write_text("".join(f"{pair[column]}\n" for pair in PAIRS["news"]))
    for news in wmt14.NEWS.values():
        files = [str(tmp_path / name) for name in (*wmt14.LANGUAGES, "docid", "genre", "origlang")]
        monkeypatch.setattr(DATASETS[news], "get_files", lambda pair, files=files: files)
    monkeypatch.setattr(wmt14, "ARCHIVES", tuple(moved))
    monkeypatch.setattr(wmt14, "VOCABULARY", 80)
    monkeypatch.setenv("FWP_DATA", str(folder.parent))
    return folder


@pytest.mark.parametrize(
    "content, problem",
    [
        (lambda good: good[:-9], "not a whole archive"),
        (lambda good: good[:-8] + bytes(8), "not a whole archive"),
        (lambda good: b"<html>", "not a whole archive"),
        (lambda good: packed("training/other", PAIRS["europarl"]), "not a whole archive"),
        (lambda good: packed(wmt14.ARCHIVES[0].member, PAIRS["europarl"], ("", "Mehr\n")), "40 and 41"),
        (lambda good: packed(wmt14.ARCHIVES[0].member, PAIRS["europarl"][1:]), "the published 40 lines"),
    ],
)
def test_archive_that_is_not_whole_is_refused(archives, tmp_path, content, problem):
    file = archives / wmt14.ARCHIVES[0].file
    file.write_bytes(content(file.read_bytes()))
    with pytest.raises(RecipeError, match=f"europarl.*{problem}"):
        wmt14.prepare(tmp_path / "data")
    assert not (tmp_path / "data/raw/train.en").exists()


@pytest.mark.parametrize("world, freq", [(1, 48), (3, 16), (16, 3)])
def test_an_update_sees_the_same_tokens_on_any_number_of_gpus(world, freq):
    flags = flags_of(commands.train(run_of(presets.WMT14), tuple(range(world))))
    assert (flags["--update-freq"], flags["--distributed-world-size"]) == (str(freq), str(world))
    assert freq * world * int(flags["--max-tokens"]) == presets.WMT14.tokens_per_update
    with pytest.raises(RecipeError, match=r"5 GPUs.*among 1, 2, 3, 4, 6, 8, 12, 16, 24, 48"):
        commands.train(run_of(presets.WMT14), tuple(range(5)))
