"""Runs the `fwp` command as its user does, in this process or in a new one; makes checkpoints for it."""

import argparse
import subprocess
import sys

import pytest
import torch

from fwp_fairseq.cli import main
from tests.commands import Result, refusal, runner

SIZES = {
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "encoder_attention_heads": 2,
    "encoder_layers": 2,
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 24,
    "decoder_attention_heads": 2,
    "decoder_layers": 1,
    "share_all_embeddings": True,
}
LM_SIZES = {"decoder_embed_dim": 16, "decoder_ffn_embed_dim": 24, "decoder_attention_heads": 2, "decoder_layers": 2}
LENGTHS = {"max_source_positions": 64, "max_target_positions": 64}


@pytest.fixture
def fwp(capsys):
    """Runs ``fwp("d-dot", "--nu", "2")`` in this process."""
    return runner(capsys, main)


@pytest.fixture
def fwp_process():
    """Runs the command in a new process."""

    def run(*arguments, **options) -> Result:
        command = [sys.executable, "-m", "fwp_fairseq", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, **options)
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def refused(fwp):
    """Runs a command that must fail; returns its one line of error."""
    return lambda status, *arguments: refusal(fwp, f"fwp {arguments[0]}", status, *arguments)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    from fairseq.data import Dictionary

    folder = tmp_path_factory.mktemp("data")
    dictionary = Dictionary()
    for number in range(20):
        dictionary.add_symbol(f"w{number}")
    for name in ("dict.en.txt", "dict.de.txt", "dict.txt"):
        dictionary.save(str(folder / name))
    return folder


@pytest.fixture
def save(data, tmp_path):
    """Writes a checkpoint as fairseq-train does: a model of an architecture, with the state of an optimizer."""

    from fairseq import tasks
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
    from omegaconf import OmegaConf

    from fwp_fairseq.cli import archs, plugin

    plugin.import_plugin()

    def write(arch, name="input.pt", seed=0, **options):
        if arch.endswith("_lm"):
            task_cfg = {"_name": "language_modeling", "data": str(data), "tokens_per_sample": 64}
            task_cfg["max_target_positions"] = 64
            sizes = LM_SIZES | {
                "max_target_positions": 64,
                "tokens_per_sample": 64,
                "add_bos_token": False,
                "tpu": False,
            }
        else:
            task_cfg = {"_name": "translation", "data": str(data), "source_lang": "en", "target_lang": "de"} | LENGTHS
            sizes = SIZES | LENGTHS
        task = tasks.setup_task(OmegaConf.create(task_cfg))
        if ARCH_MODEL_NAME_REGISTRY.get(arch, arch) not in MODEL_DATACLASS_REGISTRY:
            model_cfg = argparse.Namespace(_name=arch, arch=arch, lr=[0.1], **(sizes | options))
            ARCH_CONFIG_REGISTRY[arch](model_cfg)
            built_from = model_cfg
        else:
            model_cfg = archs.defaults(arch) | {"_name": arch} | sizes | options
            built_from = OmegaConf.create(model_cfg)
        torch.manual_seed(seed)
        state = {
            "args": None,
            "cfg": {"task": task_cfg, "model": model_cfg},
            "model": task.build_model(built_from).state_dict(),
            "criterion": None,
            "optimizer_history": [{"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 7}],
            "extra_state": {"train_iterator": {"epoch": 2}, "ema": {"x": torch.zeros(1)}},
            "task_state": {},
            "last_optimizer_state": {"state": {0: torch.zeros(9)}},
        }
        torch.save(state, tmp_path / name)
        return tmp_path / name

    return write
