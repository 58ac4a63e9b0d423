"""Uses of the models that other files here leave out, in which code of this plugin takes another way.

Options in a Namespace, the mends of --finetune-from-model with fewer layers, and language models without carried state,
in half precision.
"""

import re

import pytest
import torch

pytestmark = pytest.mark.slow

FEW = ["--max-update", 4, "--disable-validation", "--no-epoch-checkpoints"]
MULTILINGUAL = [
    *("--task", "translation_multi_simple_epoch", "--lang-pairs", "en-de,de-en"),
    *("--encoder-langtok", "src", "--decoder-langtok"),
]
BY_TEMPERATURE = ["--sampling-method", "temperature", "--sampling-temperature", 1.5, "--virtual-epoch-size", 200]


def test_a_multilingual_task(tools):
    """The task has no dataclass, so its options are a Namespace."""
    without = ("-s", "-t", "--task")
    found = tools.train(
        *("multilingual", *tools.attention["mixed"], *MULTILINGUAL, *BY_TEMPERATURE, "--max-source-positions", 200),
        *("--max-update", 4),
        without=without,
    ).ok()
    assert len(found.losses()) == 4 and "update-rule=gated" in found.out
    (model,) = re.findall(r"'model': \{.*?\}", found.out)
    assert "'max_source_positions': 200" in model and "'max_target_positions': 1024" in model
    path = ("--path", "multilingual/checkpoint_last.pt", "--batch-size", 16, "--beam", 2, "--max-len-b", 10, "--cpu")
    for source, target in (("en", "de"), ("de", "en")):
        found = tools.run("generate", "bin", *tools.user_dir, *MULTILINGUAL, *path, "-s", source, "-t", target).ok()
        assert len(found.translations()) >= 32


def test_layers_left_out_of_a_trained_model(tools):
    flags = ["--encoder-layers", 3, "--decoder-layers", 3, "--encoder-layerdrop", 0.1, "--decoder-layerdrop", 0.1]
    tools.train("deep", *tools.attention["mixed"], *flags, *FEW).ok()
    keep = "{'encoder_layers_to_keep': '0,2', 'decoder_layers_to_keep': '1'}"
    whole, pruned = (
        tools.generate("deep/checkpoint_last.pt", "--beam", 1, *more).ok() for more in ((), ("--model-overrides", keep))
    )
    assert len(pruned.translations()) == 40 and pruned.lines("P") != whole.lines("P")
    deep = tools.load("deep/checkpoint_last.pt")
    deep["extra_state"]["previous_training_time"] = 1e6
    torch.save(deep, tools.folder / "deep/checkpoint_last.pt")
    kept = ["--encoder-layers-to-keep", "0,2", "--decoder-layers-to-keep", "1", *tools.attention["mixed"], *FEW]
    kept += ["--store-ema"]  # which begins with the parameters of a checkpoint that has no average
    tools.train("kept", *flags, *kept, "--finetune-from-model", "deep/checkpoint_last.pt").ok()
    assert len(tools.generate("kept/checkpoint_last.pt", "--beam", 1).ok().translations()) == 40
    assert tools.load("kept/checkpoint_last.pt")["extra_state"]["previous_training_time"] < 1e5
    assert "@ 4 updates" in tools.train("kept", *flags, *kept, "--max-update", 6).ok().out
    seed = ["--store-ema", "--ema-decay", 1, "--ema-seed-model"]
    (tools.folder / "damaged.pt").write_bytes((tools.folder / "deep/checkpoint_last.pt").read_bytes()[:1000])
    assert "checkpoint damaged.pt cannot be read" in tools.train("seeded", *flags, *FEW, *seed, "damaged.pt").error
    tools.train("seeded", *flags, *tools.attention["mixed"], *FEW, *seed, "deep/checkpoint_last.pt").ok()
    average = tools.load("seeded/checkpoint_last.pt")["extra_state"]["ema"]  # which stays where it began
    different = {name for name, x in deep["model"].items() if not torch.equal(x, average[name])}
    assert different <= {"encoder.version", "decoder.version"}


@pytest.fixture(scope="module")
def monolingual(tools):
    tools.run(
        *("preprocess", "--only-source", "--destdir", "monolingual", "--srcdict", "bin/dict.de.txt", "--workers", 1),
        *("--trainpref", "bpe/val.de", "--validpref", "bpe/val.de"),
    ).ok()
    return ("monolingual", *tools.user_dir, "--task", "language_modeling", "--cpu")


@pytest.mark.parametrize(
    "name, flags",
    [
        ("sum", ["--share-decoder-input-output-embed", "--memory-efficient-fp16"]),
        (
            "gated",
            [
                *("--criterion", "adaptive_loss", "--adaptive-softmax-cutoff", "100,200"),
                *("--ddp-backend", "legacy_ddp", "--bf16"),
            ],
        ),
    ],
)
def test_a_language_model(tools, monolingual, name, flags):
    path = ("--path", f"{name}/checkpoint_last.pt", "--batch-size", 8)
    model = ["--arch", "fwp_lm", "--fwp-update-rule", name, "--decoder-embed-dim", 32, "--decoder-layers", 2]
    model += ["--decoder-ffn-embed-dim", 64, "--decoder-attention-heads", 2, "--add-bos-token", *flags, *FEW]
    model += ["--tokens-per-sample", 64, "--optimizer", "adam", "--lr", 1e-2, "--batch-size", 8]
    model += ["--log-format", "json", "--log-interval", 1, "--num-workers", 0]
    found = tools.run("train", *monolingual, *model, "--save-dir", name).ok()
    assert len(found.losses()) == 4
    if name == "sum":
        kept = ["--finetune-from-model", "sum/checkpoint_last.pt", "--decoder-layers-to-keep", "1"]
        tools.run("train", *monolingual, *model, "--save-dir", "kept-lm", *kept).ok()
        assert tools.load("kept-lm/checkpoint_last.pt")["cfg"]["model"]["decoder_layers"] == 1
        tools.run("eval_lm", *monolingual, "--path", "kept-lm/checkpoint_last.pt", "--gen-subset", "valid").ok()
    perplexities = []
    for more in ((), ("--context-window", 25)):
        found = tools.run(
            "eval_lm", *monolingual, *path, "--gen-subset", "valid", "--tokens-per-sample", 64, *more
        ).ok()
        perplexities.append(float(re.search(r"Perplexity: ([\d.]+)", found.out + found.err)[1]))
    assert all(1 < perplexity < 500 for perplexity in perplexities) and len(set(perplexities)) == 2
    found = tools.run(
        *("generate", *monolingual, *path, "--gen-subset", "valid", "--sample-break-mode", "eos", "--beam", 2),
        *("--prefix-size", 2, "--max-len-b", 8, "--tokens-per-sample", 64, "--required-batch-size-multiple", 1),
    ).ok()
    assert len(found.translations()) == 40
