"""An architecture's name in a Hydra configuration gives the same model as --arch."""

import pytest
from fairseq import models, options
from fairseq.dataclass.initialize import add_defaults
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from omegaconf import OmegaConf

from fwp_fairseq.cli.plugin import import_plugin

import_plugin()
TASKS = {"fwp_transformer": "translation"} | dict.fromkeys(
    ("fwp_lm", "transformer_xl_lm", "transformer_lm"), "language_modeling"
)
ARCHITECTURES = sorted(
    name for name, model in ARCH_MODEL_NAME_REGISTRY.items() if model.startswith(("fwp_", "transformer_xl_"))
)


def by_arch(arch: str, task: str, chosen: dict) -> dict:
    flags = [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    parser = options.get_training_parser(task)
    args = options.parse_args_and_arch(parser, ["data", "--task", task, "--arch", arch, *flags])
    return complete(convert_namespace_to_omegaconf(args))


def by_name(arch: str, task: str, chosen: dict) -> dict:
    return complete(
        OmegaConf.create(
            {"common": {"tpu": False}, "task": {"_name": task, "data": "data"}, "model": {"_name": arch, **chosen}}
        )
    )


def complete(cfg) -> dict:
    """Returns the options of the model as fairseq_cli.train completes them."""
    add_defaults(cfg)
    return OmegaConf.to_container(cfg.model, resolve=True, enum_to_str=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arch, chosen",
    [
        *((arch, {}) for arch in ARCHITECTURES),
        ("fwp_transformer", {"encoder_embed_dim": 64, "dropout": 0.2}),
        ("fwp_transformer_tiny", {"encoder_embed_dim": 96, "decoder_attention_heads": 3}),
        ("delta_transformer_wmt_en_de_big", {"fwp_feature_map": "elu", "encoder_layers": 1}),
        ("performer_transformer_wmt_en_de_big", {"fwp_encoder": "softmax"}),
        ("fwp_lm_wikitext103_small", {"decoder_embed_dim": 64, "fwp_update_rule": "delta"}),
    ],
)
def test_the_values_are_those_of_arch_but_for_the_users(arch, chosen):
    task = TASKS[ARCH_MODEL_NAME_REGISTRY[arch]]
    found = by_name(arch, task, chosen)
    assert found == by_arch(arch, task, chosen)
    assert found.items() >= chosen.items()


def test_architectures_of_fairseq_stay_as_it_has_them():
    """Without the plugin a name of one of its architectures stands for the defaults of the model."""
    name = "transformer_lm_gpt2_small"
    layers = [make(name, "language_modeling", {})["decoder_layers"] for make in (by_name, by_arch)]
    assert layers == [6, 24]


def test_references_to_other_options_are_followed():
    """This happens in the second job of a multirun: the plugin is imported before the configuration is resolved."""
    chosen = {"encoder_embed_dim": 64, "decoder_ffn_embed_dim": "${model.encoder_embed_dim}"}
    found = by_name("fwp_transformer_tiny", "translation", chosen)
    assert found["decoder_ffn_embed_dim"] == found["decoder_embed_dim"] == 64


def test_an_unknown_option_is_refused():
    with pytest.raises(Exception, match="encoder_embed_dimension"):
        by_name("fwp_transformer_tiny", "translation", {"encoder_embed_dimension": 64})


def test_an_unknown_architecture_is_named():
    with pytest.raises(ValueError, match=r"model\._name fwp_transformer_tinny: expected an architecture"):
        models.build_model(OmegaConf.create({"_name": "fwp_transformer_tinny"}), None)
    for absent in ({"dropout": 0.1, "encoder_layers": 2}, {"_name": None, "dropout": 0.1}):
        with pytest.raises(ValueError, match=r"model\._name None: expected an architecture"):
            models.build_model(OmegaConf.create(absent), None)
