"""Tests decoding and scoring with fairseq's own commands."""

import math
import re
from itertools import pairwise

import pytest
import torch

# Fails if a checkpoint is loaded in a way that could run code pickled in it.
ONLY_SAFE_LOADING = """
import os, torch

assert not any(name.startswith("TORCH_FORCE_") for name in os.environ)
load = torch.load
def checked(*args, **kwargs):
    assert kwargs.get("weights_only") is not False
    return load(*args, **kwargs)
torch.load = checked
"""
BEST = "mixed/checkpoint_best.pt"


@pytest.fixture(scope="module")
def beam4(tools, mixed, favor):
    return {
        "mixed": tools.generate(BEST, "--beam", 4, prelude=ONLY_SAFE_LOADING).ok(),
        "favor": tools.generate("favor/checkpoint_last.pt", "--beam", 4, prelude=ONLY_SAFE_LOADING).ok(),
    }


def detokenize(pieces: str) -> str:
    return pieces.replace(" ", "").replace("▁", " ").strip()


def assert_same_translations(found, expected) -> None:
    assert found.translations() == expected.translations()
    assert found.scores() == pytest.approx(expected.scores(), rel=0, abs=2e-3)


def test_batches_and_their_padding_change_nothing(tools, beam4):
    assert_same_translations(tools.generate(BEST, "--beam", 4, "--batch-size", 3).ok(), beam4["mixed"])


@pytest.mark.parametrize("name, backend", [("mixed", "reference"), ("favor", "chunked")])
def test_backend_chosen_at_decoding(tools, beam4, name, backend):
    path = BEST if name == "mixed" else "favor/checkpoint_last.pt"
    overrides = f"{{'fwp_backend': '{backend}'}}"
    assert_same_translations(tools.generate(path, "--beam", 4, "--model-overrides", overrides).ok(), beam4[name])


@pytest.mark.parametrize("size", [1, 2])
def test_prefix_is_kept_and_no_two_pieces_are_repeated(tools, mixed, size):
    found = tools.generate(BEST, "--beam", 4, "--prefix-size", 2, "--no-repeat-ngram-size", size).ok()
    for reference, text in zip(found.lines("T"), found.translations(), strict=True):
        expected = reference.split()[:2]
        assert text.split()[:2] == expected or "<<unk>>" in expected
        pieces = text.split()
        found = list(pairwise(pieces) if size == 2 else pieces)
        assert len({*found}) == len(found) == len(pieces) + 1 - size


def test_ensemble_is_neither_member(tools, beam4):
    found = tools.generate(f"{BEST}:favor/checkpoint_last.pt", "--beam", 4).ok()
    assert len(found.translations()) == 40
    for member in beam4.values():
        assert found.lines("P") != member.lines("P")
    twice = tools.generate(f"{BEST}:{BEST}", "--beam", 4).ok()
    assert_same_translations(twice, beam4["mixed"])


def test_decoding_by_steps_scores_as_the_whole_pass(tools, beam4):
    """The decoder gives the hypotheses of beam search the same scores when it reads them in one pass."""
    folder = tools.folder / "forced"
    folder.mkdir()
    (folder / "test.de").write_text("\n".join(beam4["mixed"].translations()) + "\n", encoding="utf-8")
    (folder / "test.en").write_text((tools.folder / "bpe/val.en").read_text(encoding="utf-8"), encoding="utf-8")
    tools.run(
        *("preprocess", "-s", "en", "-t", "de", "--testpref", "forced/test", "--destdir", "forced/bin"),
        *("--srcdict", "bin/dict.en.txt", "--tgtdict", "bin/dict.de.txt"),
    ).ok()
    found = tools.run(
        *("generate", "forced/bin", *tools.user_dir, "--task", "translation", "--cpu", "--path", BEST),
        "--score-reference",
    ).ok()
    assert_same_translations(found, beam4["mixed"])


def test_lengths_beyond_training_and_limit_are_said(tools, mixed):
    """One line each at the end. The flags are those that the refusal of the long source names."""
    longest = 1 + max(len(line.split()) for line in (tools.folder / "bpe/train.en").read_text("utf-8").splitlines())
    flags = (BEST, "--beam", 2, "--gen-subset", "test1", "--max-len-b", 30)
    error = tools.generate(*flags).error
    named = re.search(r'(--max-source-positions N --max-target-positions N).*(--model-overrides) "(.*)"', error)
    more = [*named[1].replace("N", "4096").split(), named[2], named[3].replace("N", "4096")]
    found = tools.generate(*flags, *more).ok()
    short, long = (len(line.split()) for line in found.lines("S"))
    assert short > 600 and long > 1024
    assert all(found.translations()) and all(map(math.isfinite, found.scores()))
    (said,) = re.findall("(.*) more than any source in training(.*)", found.out + found.err)
    assert f"2 of 2 sources have up to {long + 1} tokens" in said[0] and f"({longest})" in said[1]

    flags = ("interactive", "bin", *tools.user_dir, "--path", BEST, "--cpu", "--beam", 1, "--max-len-b", 3)
    found = tools.run(*flags, stdin="▁A ▁man\n" + "▁A " * (longest + 3) + "\n").ok()
    assert "1 of 2 sources have up to" in found.out + found.err
    assert "2 of 2 translations reached the limit of --max-len-a 0 --max-len-b 3" in found.out + found.err
    assert "unknown" not in found.err
    found = tools.run(*flags, stdin="Two men are outside .\n").ok()  # not encoded as the training's text
    assert "4 of 6 tokens of the sources are unknown to the model" in found.out + found.err


def test_dropout_is_kept_where_it_is_asked_for(tools, mixed):
    flags = (BEST, "--beam", 1, "--max-len-b", 3, "--retain-dropout", "--retain-dropout-modules")
    found = tools.generate(*flags, "FwpDecoderLayer,FastWeightSiteAttention").ok()
    kept = set(re.findall(r"Enabling dropout .* module: (\S+)\.dropout_module", found.out + found.err))
    others = {name for name in kept if not name.endswith("attn")}
    assert others == {"decoder.layers.0", "decoder.layers.1"} and len(kept) == 8
    expected = "class FwpDecoderr; expected some of FastWeightSiteAttention, FwpDecoder,"
    assert expected in tools.generate(*flags, "FwpDecoderr").error


def test_an_override_that_there_is_not_is_named(tools, mixed):
    found = tools.generate(BEST, "--beam", 1, "--max-len-b", 3, "--model-overrides", "{'fwp_bakend': 'chunked'}").ok()
    assert f"--model-overrides fwp_bakend: ignored; checkpoint {BEST} has no such option" in found.out + found.err


def test_interactive_translates_standard_input(tools, beam4):
    raw = (tools.folder / "raw/val.en").read_text(encoding="utf-8").splitlines()[:5]
    found = tools.run(
        *("interactive", "bin", *tools.user_dir, "--task", "translation", "-s", "en", "-t", "de", "--cpu"),
        *("--path", BEST, "--beam", 4, "--max-len-b", 30, "--buffer-size", 3, "--batch-size", 3),
        *("--bpe", "sentencepiece", "--sentencepiece-model", "spm.model"),
        stdin="\n".join(raw) + "\n",
    ).ok()
    assert found.translations() == beam4["mixed"].translations()[:5]
    joined = [detokenize(text) for text in found.translations()]
    assert [line.split("\t")[1] for line in found.lines("D")] == joined


def test_average_is_decoded(tools, favor):
    tools.command("fwp", "average", "--checkpoint-dir", "favor", "--last", 2, "--output", "favor.average.pt").ok()
    assert len(tools.generate("favor.average.pt", "--beam", 4).ok().translations()) == 40
    paths = ("favor/checkpoint4.pt", "favor/checkpoint5.pt", "favor.average.pt")
    first, second, mean = (tools.load(path)["model"]["decoder.layers.1.fc1.weight"] for path in paths)
    torch.testing.assert_close(mean, (first + second) / 2)


def test_from_pretrained(tools, beam4):
    raw = (tools.folder / "raw/val.en").read_text(encoding="utf-8").splitlines()[:3]
    found = tools.python(
        f"import sys; sys.path.insert(0, {str(tools.root)!r})\n"
        "from fwp_fairseq.models.architectures import FwpTransformer\n"
        "model = FwpTransformer.from_pretrained('mixed', 'checkpoint_best.pt', data_name_or_path='../bin'"
        ", bpe='sentencepiece', sentencepiece_model='spm.model')\n"
        f"for text in model.translate({raw!r}, beam=4, max_len_b=30): print(text)"
    ).ok()
    assert found.out.splitlines()[-3:] == [detokenize(text) for text in beam4["mixed"].translations()[:3]]
