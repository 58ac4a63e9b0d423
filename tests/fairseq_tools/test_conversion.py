"""fairseq's own commands decode with, and train, a converted checkpoint of fairseq's own Transformer."""

import shlex

import pytest
import torch

STOCK = [
    *("--arch", "transformer", "--encoder-layers", 2, "--decoder-layers", 2, "--share-all-embeddings"),
    *("--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 64),
    *("--encoder-attention-heads", 2, "--decoder-attention-heads", 2),
]


def convert(tools, source, output, *flags):
    return tools.command("fwp", "convert", "--input", source, "--output", output, *flags)


@pytest.fixture(scope="module")
def stock(tools):
    """A model that was trained without this plugin."""
    return tools.run("train", "bin", *STOCK, *tools.usual, "--save-dir", "stock", "--max-update", 20).ok()


@pytest.fixture(scope="module")
def converted(tools, stock):
    return convert(
        *(tools, "stock/checkpoint_last.pt", "converted.pt"),
        *("--fwp-feature-map", "dpfp", "--fwp-d-dot", 64, "--fwp-decoder", "update-rule=delta"),
    ).ok()


def test_softmax_decodes_as_before(tools, stock):
    convert(tools, "stock/checkpoint_last.pt", "softmax.pt", "--fwp-feature-map", "softmax").ok()
    before = tools.generate("stock/checkpoint_last.pt", "--beam", 1, "--max-len-b", 10).ok()
    after = tools.generate("softmax.pt", "--beam", 1, "--max-len-b", 10).ok()
    assert after.translations() == before.translations()
    assert after.scores() == pytest.approx(before.scores(), abs=1.1e-4)  # printed with four digits


def test_a_window_of_the_source(tools, stock):
    """From a checkpoint, from fairseq's command line and from ours."""
    limits = ("--beam", 2, "--max-len-b", 10)
    for name, flags in (("softmax", ()), ("window", ("--fwp-cross", "softmax,source-window=3"))):
        convert(tools, "stock/checkpoint_last.pt", f"{name}.pt", "--fwp-feature-map", "softmax", *flags).ok()
    kept = tools.generate("window.pt", *limits).ok()
    given = tools.generate("softmax.pt", *limits, "--model-overrides", "{'fwp_cross': 'softmax,source_window=3'}").ok()
    assert given.lines("P") == kept.lines("P") != tools.generate("softmax.pt", *limits).ok().lines("P")
    ours = tools.command(
        *("fwp", "translate", "softmax.pt", "--data", "bin", "--spm", "none", "--cpu", "--source-window", 3),
        *("--max-len-a", 0, *limits),
        stdin="".join(f"{line}\n" for line in kept.lines("S")),
    )
    assert ours.ok().out.splitlines() == kept.translations()


def test_fine_tuning_with_the_flags_that_were_printed(tools, converted, stock):
    words = shlex.split(converted.out.splitlines()[-1])
    found = tools.run(
        *("train", "bin", *tools.user_dir, *words, *tools.usual, "--save-dir", "tuned", "--max-update", 15),
    ).ok()
    assert "loading pretrained model from converted.pt" in found.out + found.err
    losses = found.losses()
    assert len(losses) == 15 and sum(losses[-5:]) < sum(losses[:5]) < sum(stock.losses()[:5])
    strength = "decoder.layers.1.self_attn.memory.beta_proj.weight"
    before, after = (tools.load(path)["model"][strength] for path in ("converted.pt", "tuned/checkpoint_last.pt"))
    assert before.shape == after.shape and not torch.equal(before, after)


def test_restore_file_with_a_new_optimizer(tools, converted):
    words = shlex.split(converted.out.splitlines()[-1])[2:]
    found = tools.run(
        *("train", "bin", *tools.user_dir, *words, *tools.usual, "--save-dir", "restored", "--max-update", 5),
        *("--restore-file", "converted.pt", "--reset-optimizer", "--reset-lr-scheduler"),
    ).ok()
    assert "Loaded checkpoint converted.pt (epoch 2" in found.out + found.err
    # Training goes on through the data where the softmax training stopped, but counts updates from 0.
    state = tools.load("restored/checkpoint_last.pt")
    assert state["extra_state"]["train_iterator"]["epoch"] == 2
    assert state["optimizer_history"][-1]["num_updates"] == 5
