"""Language models: rows and commands of the recipe, and a run with the real tools."""

import math
import zipfile
from pathlib import Path

import pytest

from scripts.common import records
from scripts.common.commands import flags_of
from scripts.common.errors import RecipeError
from scripts.common.runner import reproduction
from scripts.data import sources
from scripts.experiments.language_models import commands, data, presets, recipe
from scripts.experiments.language_models.commands import LanguageModelRun
from scripts.experiments.language_models.rows import BY_NAME, ROWS
from scripts.experiments.language_models.table import published

ALL_PRESETS = list(presets.PRESETS.values())
ATTENTION = {
    *("--fwp-decoder", "--no-token-positional-embeddings", "--fwp-state", "--fwp-carry-doubling"),
}
TRANSFORMER_XL = {"--arch", "--mem-len", "--tokens-per-sample", "--update-freq", "--max-update", "--warmup-updates"}


def run_of(preset=presets.WIKITEXT103, row="elu,update-rule=delta_medium", more=()):
    return LanguageModelRun(preset, BY_NAME[row], 1, Path("runs/x"), Path("data"), more=tuple(more))


def test_rows_are_those_of_the_papers_tables():
    paper = {row["row"] for number in (2, 3, 4, 5) for row in published(f"table_{number}")}
    assert paper == set(BY_NAME)
    assert len(BY_NAME) == len(ROWS) == len({(row.size, *row.flags.items()) for row in ROWS})
    # Schlag et al. 2021, Appendix D: what is not normalised at all does not train; the sum of the delta rule always is.
    assert {(row.recorded["update_rule"], row.recorded["normalizer"]) for row in ROWS} == {
        *((None, None), ("sum", "attention"), ("delta", "sum"), ("delta", "both"))
    }


@pytest.mark.parametrize("preset", ALL_PRESETS, ids=lambda preset: preset.name)
def test_rows_of_a_size_differ_in_attention_only(preset):
    for size in preset.sizes:
        flags = [flags_of(commands.train(run_of(preset, row.name))) for row in preset.rows if row.size == size]
        different = {flag for one in flags for flag in one | flags[0] if one.get(flag) != flags[0].get(flag)}
        assert different <= ATTENTION | TRANSFORMER_XL
        fast_weights = [one for one in flags if "--mem-len" not in one]
        assert all(one.get(flag) == fast_weights[0].get(flag) for one in fast_weights for flag in TRANSFORMER_XL)


@pytest.mark.parametrize("preset", ALL_PRESETS, ids=lambda preset: preset.name)
def test_an_update_of_every_row_reads_the_same_tokens(preset):
    for row in preset.rows:
        flags = {"--update-freq": "1"} | flags_of(commands.train(run_of(preset, row.name)))
        read = [int(flags[name]) for name in ("--tokens-per-sample", "--batch-size", "--update-freq")]
        size = preset.sizes[row.size]
        assert math.prod(read) == size.length * size.streams


TEXT = "".join(f"Line {n}: to be, or not to be.\n\n" for n in range(400))


def test_characters_are_the_text(tmp_path):
    (tmp_path / "input.txt").write_text(TEXT)
    parts = list(data._parts("tinyshakespeare", tmp_path / "input.txt").values())
    assert "".join(parts) == TEXT and [round(len(part) / len(TEXT), 2) for part in parts] == [0.9, 0.05, 0.05]
    for text in parts:
        encoded = data._characters(text)
        assert encoded.replace(" ", "").replace(data.SPACE, " ") == text
        # Each is one token; the line's end is fairseq's own.
        assert sum(len(line.split()) + 1 for line in encoded.split("\n")[:-1]) == len(text)


def test_the_words_of_wikitext103_are_read_from_its_archive(tmp_path):
    file = tmp_path / "wikitext.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for split in data.SPLITS:
            archive.writestr(f"wikitext-103/wiki.{split}.tokens", f" = {split} = \n")
    assert data._parts("wikitext103", file) == {split: f" = {split} = \n" for split in data.SPLITS}
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(RecipeError, match=r"wikitext\.zip: File is not a zip"):
        data._parts("wikitext103", file)


SMOKE = ["--preset", "smoke", "--cpu"]


@pytest.mark.slow
@pytest.mark.parametrize("row", ["elu,update-rule=delta_medium_no-positions_carried", "transformer-xl-15"])
def test_the_real_tools_train_and_evaluate_with_carried_state(real_root, tmp_path, monkeypatch, row):
    """A text of this test's own in place of Tiny Shakespeare; everything else is what a user runs."""

    def provide(source, target, say):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(TEXT)

    monkeypatch.setattr(sources, "provide", provide)
    out = tmp_path / "out"
    assert reproduction.main(recipe.EXPERIMENT, [*SMOKE, "--rows", row, "--out", str(out)]) == 0
    (record,) = records.read_file(out / "language_models.jsonl")
    text = (out / "data/raw/test.txt").read_text()
    assert record["test"]["tokens"] == len(text)
    assert record["test"]["words"] == len(text.split()) + text.count("\n")
    assert record["updates"] == 8 and 0 < record["test"]["bits_per_token"] < 8
    assert record["state_numbers"] == 32 * 32
