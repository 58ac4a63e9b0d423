"""What a stranger's checkpoint may hold is refused within seconds and little memory, by name, by `fwp` and fairseq."""

import argparse
import re
import time
import zipfile
from functools import reduce
from itertools import product
from pathlib import Path
from random import Random

import pytest
import torch
from fairseq import checkpoint_utils

from fwp_fairseq import checkpoint_content
from fwp_fairseq.mends import loading

SECONDS, KILOBYTES = 20, 1_000_000
OURS = "decoder.layers.0.self_attn.memory.beta_proj"


def option(name, value):
    return lambda state: state["cfg"]["model"].update({name: value})


def parameter(make, name="decoder.layers.0.fc1.weight"):
    return lambda state: state["model"].update({name: make(state["model"][name])})


def without(name):
    return lambda state: state["model"].pop(name)


def nested(state):
    found = []
    for _ in range(60):
        found = [found, found]
    state["cfg"]["model"]["eval"] = found


CHANGES = {
    "layers": (option("encoder_layers", 10**6), "encoder_layers is 1000000"),
    "depth": (option("fwp_decoder", "delta-mlp,fast-net-depth=1000000"), "fast-net-depth=1000000, but there are"),
    "width": (option("encoder_embed_dim", 10**9), "model"),
    "positions": (option("max_source_positions", 10**10), "its options describe a model of"),
    "d-dot": (option("fwp_d_dot", 10**9), "model"),
    "map": (option("fwp_feature_map", "rbf\x1b[2J"), "rbf\\x1b"),
    "type": (option("encoder_embed_dim", "wide"), "option encoder_embed_dim of its model is 'wide', expected a number"),
    "dropout": (option("dropout", "abc"), "option dropout of its model is 'abc', expected a number"),
    "longest": (
        lambda state: state["task_state"].update(longest_source="abc"),
        "longest_source is 'abc', expected a c",
    ),
    "runs": (
        lambda state: state["extra_state"].update(early_stopping={"num_runs": "x"}),
        "num_runs is 'x', expected a",
    ),
    "epoch": (lambda state: state["extra_state"]["train_iterator"].update(epoch=10**12), "epoch is 1000000000000, exp"),
    "updates": (lambda state: state["optimizer_history"][0].update(num_updates=-1), "num_updates is -1, expected a co"),
    "time": (lambda state: state["extra_state"].update(previous_training_time="long"), "is 'long', expected a number"),
    "no-time": (lambda state: state["extra_state"].update(previous_training_time=None), "is None, expected a number"),
    "environment": (option("activation_fn", "${oc.env:HOME}"), "expected a plain value"),
    "cfg": (lambda state: state.update(cfg="task: [1"), "cfg is of type str"),
    "model": (lambda state: state["cfg"].update(model=["fwp_transformer"]), "cfg.model is of type list"),
    "name": (option("_name", ["fwp_transformer"]), "expected a name"),
    "nested": (nested, "nested too deeply or has too many parts"),
    "deep": (option("eval", reduce(lambda x, _: [x], range(70), [])), "nested too deeply"),
    "no-tensor": (parameter(lambda x: 3), "of type int, expected a tensor"),
    "expanded": (parameter(lambda x: torch.zeros(1).expand(2**16, 2**16)), "holds 4 of 17,179,869,184 bytes"),
    "sparse": (parameter(lambda x: torch.zeros(4, 4).to_sparse()), "expected a dense tensor"),
    "meta": (parameter(lambda x: torch.zeros(4, 4, device="meta")), "expected a dense tensor"),
    "task": (lambda state: state["cfg"].update(task=["translation"]), "cfg.task is of type list"),
    "no-options": (lambda state: state["cfg"].update(task=None), "cfg.task is None, expected options by their names"),
    "history": (lambda state: state.update(optimizer_history=[3]), "optimizer_history is of type int"),
    "state": (lambda state: state.update(extra_state=[1]), "extra_state is of type list"),
}
ONLY_OURS = {
    "complex": (parameter(lambda x: x.to(torch.complex64)), "expected real numbers"),
    "bool": (parameter(lambda x: x > 0), "expected real numbers"),
    "whole": (parameter(lambda x: x.long()), "fc1.weight is of type torch.int64, expected torch.float32"),
    "nan": (parameter(lambda x: x.fill_(torch.nan), "encoder.layers.0.fc2.bias"), "16 of 16 numbers in"),
    "scalar": (parameter(lambda x: x[0], "decoder.layer_norm.bias"), "is of shape (), expected (16,)"),
    "narrow": (parameter(lambda x: x[:1], f"{OURS}.weight"), f"{OURS}.weight is of shape (1, 16), expected (2, 16)"),
    "no-key": (without("encoder.layers.1.self_attn.k_proj.weight"), "is missing, expected one of shape (16, 16)"),
    "no-words": (without("encoder.embed_tokens.weight"), "is missing, expected one of shape (24, 16)"),
    "surplus": (
        lambda state: state["model"].update({"decoder.head": torch.zeros(3)}),
        "parameter decoder.head is none of the model",
    ),
}
LINES = "relu\n--finetune-from-model x --user-dir evil\x1b[2J"  # which a program might split into flags
CONVERT_ONLY = {
    "no-dropout": (option("dropout", None), "0.1, expected None"),
    "fconv": (option("_name", "fconv_iwslt_de_en"), "model fconv, expected one of fwp_transformer"),
    "other-names": (lambda state: state.update(model={"in_proj_weight": torch.zeros(48, 16)}), "no model can be built"),
    "no-model": (lambda state: state["cfg"].pop("model"), "expected the options cfg.model in it"),
    "no-task": (lambda state: state["cfg"].pop("task"), "expected the options cfg.task in it"),
    "no-text": (
        parameter(lambda x: torch.tensor([300, 7]), "attention_flags"),
        "its entry attention_flags is not text",
    ),
    "text-of-two-lines": (
        parameter(lambda x: torch.tensor(list(LINES.encode())), "attention_flags"),
        "attention_flags is not text of one line",
    ),
    "lines": (option("activation_fn", LINES), "option activation_fn is 'relu\\n--finetune"),
    "lines-of-no-option": (option("injected", LINES), "option injected is 'relu\\n--finetune"),
}


@pytest.fixture
def hostile(save):
    def write(change):
        path = save("fwp_transformer_tiny", fwp_update_rule="delta", decoder_normalize_before=True)
        state = torch.load(path, weights_only=True)
        change(state)
        torch.save(state, path)
        return path

    return write


def _most_memory() -> int:
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


@pytest.fixture
def within_bounds():
    Path("/proc/self/clear_refs").write_text("5")  # what was used most is counted anew
    begin, used = time.process_time(), _most_memory()
    yield
    assert time.process_time() - begin < SECONDS
    assert _most_memory() - used < KILOBYTES


@pytest.mark.parametrize(
    "command, kind", [*product(["convert"], CHANGES | ONLY_OURS | CONVERT_ONLY), *product(["average"], ONLY_OURS)]
)
def test_fwp_refuses_it_by_name(hostile, refused, tmp_path, within_bounds, command, kind):
    change, named = (CHANGES | ONLY_OURS | CONVERT_ONLY)[kind]
    path = hostile(change)
    arguments = ("--input", path, "--fwp-feature-map", "elu") if command == "convert" else ("--inputs", path)
    message = refused(1, command, *arguments, "--output", tmp_path / "out.pt")
    assert path.name in message and named in message and message.isprintable()
    assert not (tmp_path / "out.pt").exists()


TABLE_ONLY = {
    "seed": lambda state: state["cfg"].update(common={"seed": [1]}),
    "attention": lambda state: state["cfg"]["model"].update(fwp_decoder="dpfp,d-dot=many"),
}


@pytest.mark.parametrize("kind", TABLE_ONLY)
def test_a_table_refuses_it_by_name(hostile, refused, tmp_path, kind):
    hostile(TABLE_ONLY[kind]).rename(tmp_path / "checkpoint_last.pt")
    assert "checkpoint_last.pt: its options and counters" in refused(1, "table", "--results", tmp_path)


@pytest.mark.parametrize("kind", CHANGES)
def test_fairseq_refuses_it_by_name(hostile, within_bounds, kind):
    change, named = CHANGES[kind]
    path = hostile(change)
    with pytest.raises(RuntimeError) as error:
        checkpoint_utils.load_model_ensemble_and_task([str(path)])
    message = str(error.value)
    assert message.startswith(f"checkpoint {path}") and named in message and message.isprintable()


def test_a_number_that_fairseqs_parser_leaves_as_text_is_one(fwp, save, tmp_path):
    """It gives no type to flags whose default is another flag."""
    path = save("transformer", decoder_output_dim=8, share_all_embeddings=False)
    state = torch.load(path, weights_only=False)
    state["cfg"]["model"].decoder_output_dim = "8"
    torch.save(state, path)
    checkpoint_utils.load_model_ensemble_and_task([str(path)])
    assert fwp("convert", "--input", path, "--output", tmp_path / "out.pt", "--fwp-feature-map", "elu").status == 0


# What Adam's first update would stumble over.
DAMAGED = {
    "None": lambda state: state["state"][0].update(exp_avg=None),
    "list": lambda state: state["state"][0].update(exp_avg_sq=[]),
    "shape": lambda state: state["state"][0].update(exp_avg=torch.zeros(2)),
    "no-tensor": lambda state: state["state"][0].update(exp_avg_sq=3),
    "number": lambda state: state["param_groups"][0].update(betas=-5),
    "few": lambda state: state["param_groups"][0].update(betas=[]),
    "eps": lambda state: state["param_groups"][0].update(eps=None),
    "decay": lambda state: state["param_groups"][0].update(weight_decay="x"),
    "switch": lambda state: state["param_groups"][0].update(amsgrad=-5),
}


@pytest.mark.parametrize("kind", ["unchanged", *DAMAGED])
def test_a_damaged_optimizer_is_named_before_the_first_update(kind):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    DAMAGED.get(kind, lambda state: None)(state)
    optimizer.load_state_dict(state)
    if kind == "unchanged":
        loading._check_optimizer(optimizer)
    else:
        with pytest.raises(ValueError, match=r"of its optimizer.*, expected"):
            loading._check_optimizer(optimizer)


# Each has the sizes of tests/cli/conftest.py; the options that are changed size or type something in its family.
FAMILIES = {
    "lstm": ("lstm", {"encoder_hidden_size": 60_000}),
    "lstm-decoder": ("lstm", {"decoder_hidden_size": 60_000}),
    "lstm-embedding": ("lstm", {"encoder_embed_dim": 10**9}),
    "lstm-dropout": ("lstm", {"dropout": "abc"}),
    "lstm_lm": ("lstm_lm", {"decoder_hidden_size": 60_000}),
    "fconv": ("fconv", {"encoder_layers": "[(60000, 3)]"}),
    "fconv-times": ("fconv", {"encoder_layers": "[(16, 3)] * 1000000000"}),
    "fconv_lm": ("fconv_lm", {"decoder_layers": "[(60000, 3)]"}),
    "lightconv": ("lightconv", {"encoder_ffn_embed_dim": 10**8}),
    "lightconv-kernel": ("lightconv", {"decoder_kernel_size_list": [10**9]}),
    "lightconv_lm": ("lightconv_lm", {"decoder_embed_dim": 10**7}),
    "transformer_lm": ("transformer_lm", {"decoder_ffn_embed_dim": 10**9}),
    "transformer_xl_lm": ("transformer_xl_lm", {"decoder_ffn_embed_dim": 10**9}),
    "transformer_xl_lm-type": ("transformer_xl_lm", {"decoder_layers": "abc"}),
    "transformer_align": ("transformer_align", {"encoder_ffn_embed_dim": 10**9}),
    "fwp_lm": ("fwp_lm", {"decoder_ffn_embed_dim": 10**9}),
    "fwp_lm-type": ("fwp_lm", {"fwp_decoder_d_dot": "abc"}),
}


NETS = {"encoder_layers": "[(16, 3)] * 2", "decoder_layers": "[(16, 3)]"}
CONVOLUTIONS = dict.fromkeys(("encoder_conv_type", "decoder_conv_type"), "lightweight") | dict.fromkeys(
    (
        "weight_softmax",
        "no_token_positional_embeddings",
        "decoder_learned_pos",
        "decoder_glu",
        "decoder_normalize_before",
        "share_decoder_input_output_embed",
        "share_all_embeddings",
        "dropout",
        "attention_dropout",
        "relu_dropout",
        "input_dropout",
        "weight_dropout",
    ),
    0,
)
REQUIRED = {
    "lstm": {"decoder_layers": 2, "decoder_out_embed_dim": 16, "criterion": "cross_entropy"},
    "lstm_lm": {"criterion": "cross_entropy"},
    "fconv": NETS,
    "fconv_lm": NETS | {"criterion": "cross_entropy"},
    "lightconv": CONVOLUTIONS | {"encoder_kernel_size_list": [3, 3], "decoder_kernel_size_list": [3]},
    "lightconv_lm": CONVOLUTIONS | {"decoder_kernel_size_list": [3, 3], "criterion": "cross_entropy"},
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_is_refused_by_name_and_opens_unchanged(save, within_bounds, kind):
    arch, changed = FAMILIES[kind]
    path = save(arch, **REQUIRED.get(arch, {}))
    assert checkpoint_utils.load_model_ensemble_and_task([str(path)])
    state = torch.load(path, weights_only=True)
    options = state["cfg"]["model"]
    (vars(options) if isinstance(options, argparse.Namespace) else options).update(changed)
    torch.save(state, path)
    with pytest.raises(RuntimeError) as error:
        checkpoint_utils.load_model_ensemble_and_task([str(path)])
    assert str(error.value).startswith(f"checkpoint {path} is refused: ") and str(error.value).isprintable()


def test_whole_numbers_in_place_of_parameters_are_refused(hostile):
    path = hostile(parameter(lambda x: x.long()))
    with pytest.raises(
        RuntimeError, match=r"input\.pt is refused: decoder\.layers\.0\.fc1\.weight is of type torch.int64"
    ):
        checkpoint_utils.load_model_ensemble_and_task([str(path)])


@pytest.mark.parametrize("lengths", [[-1, 5], [0, 5], [10**18, 3], [-3, -3]], ids=str)
def test_lengths_of_rotary_positions_that_no_training_measures_are_refused(save, lengths):
    path = save("fwp_transformer_tiny", fwp_cross="softmax-rotary")
    state = torch.load(path, weights_only=True)
    (name,) = (name for name in state["model"] if name.endswith("encoder_attn.positions.lengths"))
    for fitting in ([0, 0], [700, 2]):
        state["model"][name] = torch.tensor(fitting)
        torch.save(state, path)
        assert checkpoint_utils.load_model_ensemble_and_task([str(path)])
    state["model"][name] = torch.tensor(lengths)
    torch.save(state, path)
    with pytest.raises(RuntimeError) as error:
        checkpoint_utils.load_model_ensemble_and_task([str(path)])
    assert path.name in str(error.value) and f"lengths is {lengths}, expected numbers of tokens" in str(error.value)


@pytest.mark.parametrize("damage", ["bit", "zeros"])
def test_every_changed_byte_of_a_file_is_noticed(save, refused, tmp_path, damage):
    """A checksum guards all but the padding between members, whose bytes nothing reads."""
    path = save("fwp_transformer_tiny")
    whole, random = path.read_bytes(), Random(1)
    expected = torch.load(path, weights_only=True)["model"]
    refusals = 0
    for _ in range(60):
        at = random.randrange(len(whole))
        content = bytearray(whole)
        if damage == "bit":
            content[at] ^= 1 << random.randrange(8)
        else:
            content[at : at + 4096] = bytes(len(content[at : at + 4096]))
        path.write_bytes(content)
        try:
            found = checkpoint_utils.load_checkpoint_to_cpu(str(path))["model"]
        except RuntimeError as error:
            assert path.name in str(error)
            assert path.name in refused(1, "average", "--inputs", path, "--output", tmp_path / "out.pt")
            refusals += 1
        else:
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert refusals > 20


def test_what_unpacks_to_more_than_its_size_is_refused(save, refused, tmp_path, within_bounds):
    """Zeros of 1.2 GB, as torch.save would write them, compressed."""
    path, bomb = save("fwp_transformer_tiny"), tmp_path / "bomb.pt"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as new:
        for member in old.infolist():
            with new.open(member.filename, "w", force_zip64=True) as file:
                content = old.read(member)
                file.write(content if member.filename.endswith("data.pkl") else bytes(2**24))
    message = refused(1, "average", "--inputs", bomb, "--output", tmp_path / "out.pt")
    assert "bomb.pt" in message and "unpacks to" in message
    with pytest.raises(RuntimeError, match=r"bomb\.pt is refused: it has .* unpacks to"):
        checkpoint_utils.load_checkpoint_to_cpu(str(bomb))


# Cut, and pickles at which torch ends with an IndexError and a TypeError.
@pytest.mark.parametrize("content", [0, 100, 5_000, 20_000, 67_000, b"text\n", b"\x80\x02e.", b"\x80\x02}]Ns."])
def test_a_damaged_checkpoint_is_named(save, refused, tmp_path, content):
    path = save("fwp_transformer_tiny")
    path.write_bytes(content if isinstance(content, bytes) else path.read_bytes()[:content])
    assert path.name in refused(1, "average", "--inputs", path, "--output", tmp_path / "out.pt")
    with pytest.raises(RuntimeError, match=rf"checkpoint \S*{path.name} cannot be read"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_what_the_operating_system_refuses_is_no_damage(save, refused, tmp_path, monkeypatch):
    path = save("fwp_transformer_tiny")

    def denied(file, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(checkpoint_content, "check_file", denied)
    message = refused(1, "average", "--inputs", path, "--output", tmp_path / "out.pt")
    assert message.endswith(f"{path}: Permission denied")
    with pytest.raises(PermissionError, match="Permission denied"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
