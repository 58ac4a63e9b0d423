"""The baseline of `fwp train --baseline`: its flags, and what is said and refused about it."""

import argparse

import pytest

from fwp_fairseq.cli.baseline import caveat, model_flags, refuse_other
from fwp_fairseq.cli.errors import UsageError
from fwp_fairseq.cli.plugin import import_plugin
from fwp_fairseq.cli.recipe import Recipe
from fwp_fairseq.cli.train import add_arguments
from fwp_fairseq.kinds import Attention


@pytest.mark.parametrize(
    "updates, said",
    [
        ([1171, 1171], "Both trainings made 1,171 of the 11,083 updates planned"),
        ([1171, 900], "The trainings made 1,171 and 900 of the 11,083 updates planned"),
        ([1171], "The training that --patience did not end made 1,171 of the 11,083 updates planned"),
    ],
)
def test_short_trainings_are_said_to_compare_how_fast_models_learn(updates, said):
    text = caveat(updates, 11_083)
    assert text.startswith(said) and text.endswith("how fast they learn, not how good they become.")


@pytest.mark.parametrize("updates", [[11_083, 12_000], []])
def test_nothing_is_said_of_trainings_that_made_the_planned_updates(updates):
    assert caveat(updates, 11_083) is None


@pytest.mark.parametrize(
    "words, baseline, flags",
    [
        (["--baseline"], "softmax", []),
        (["--baseline", "softmax", "--"], "softmax", []),
        (
            ["--baseline", "softmax-rotary"],
            "softmax-rotary",
            ["--fwp-encoder", "softmax-rotary", "--fwp-decoder", "softmax-rotary"],
        ),
    ],
)
def test_a_baseline_is_chosen_by_name(words, baseline, flags):
    import_plugin()
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--texts", "x", "--source", "en", "--target", "de", "--out", "y", *words])
    assert args.baseline == baseline
    model = ["--arch", "fwp_transformer_tiny", "--fwp-feature-map", "softmax"]
    assert model_flags(args.baseline, "fwp_transformer_tiny_hybrid") == model + flags


def test_the_rotary_baseline_of_passages_has_the_positions_and_convolutions_of_the_hybrid():
    hybrid = Recipe(150_000, [20], 200_000, passages=True).attention(None, [])
    words = model_flags("softmax-rotary", "fwp_transformer_tiny_hybrid", hybrid)[4:]
    softmax = dict(zip(words[::2], words[1::2], strict=True))
    assert softmax.keys() == hybrid.keys() and softmax["--fwp-cross"] == hybrid["--fwp-cross"]
    sizes = [Attention.parse(flags[site]).options().conv_size for flags in (hybrid, softmax) for site in softmax]
    assert sizes == [4, 4, None] * 2
    assert model_flags("softmax", "fwp_transformer_tiny", hybrid)[4:] == []


@pytest.mark.parametrize("theirs, other", [("softmax", "softmax-rotary"), ("softmax-rotary", "softmax")])
def test_another_baseline_than_that_of_the_folder_is_refused(save, tmp_path, theirs, other):
    chosen = f"{theirs},conv-size=4"
    options = {"fwp_encoder": chosen, "fwp_decoder": chosen} if theirs == "softmax-rotary" else {}
    checkpoints = tmp_path / "out/baseline/checkpoints"
    checkpoints.mkdir(parents=True)
    save("fwp_transformer_tiny", fwp_feature_map="softmax", **options).rename(checkpoints / "checkpoint_last.pt")
    refuse_other(theirs, tmp_path / "out")
    with pytest.raises(
        UsageError, match=f"--baseline {other}: --out .*out holds --baseline {theirs}; expected another"
    ):
        refuse_other(other, tmp_path / "out")
