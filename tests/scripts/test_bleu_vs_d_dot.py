"""Tests the rows and commands of BLEU over d_dot and of BLEU by site."""

import argparse
from pathlib import Path

import pytest

from fwp_fairseq.cli.plugin import import_plugin
from fwp_fairseq.feature_maps import parameter_for
from scripts.common.commands import flags_of
from scripts.experiments.bleu_vs_d_dot import presets, rows
from scripts.experiments.by_site import recipe as by_site
from scripts.translation import commands
from scripts.translation.commands import TranslationRun

D_KEY = 64  # of the paper's models


def test_rows_are_the_papers_and_delta_ones():
    fields = [row.recorded for row in rows.ROWS]
    found = {(row["feature_map"], row["d_dot"], row["update_rule"]) for row in fields}
    paper = {("softmax", None, None), ("elu", 64, "sum")}
    paper |= {("favor", width, "sum") for width in (64, 256, 384, 512)}
    paper |= {("dpfp", width, "sum") for width in (256, 384, 512)}
    assert paper <= found
    assert {rule for _, _, rule in found - paper} == {"delta"}
    assert len({row.name for row in rows.ROWS}) == len(rows.ROWS) == len(found)


@pytest.mark.parametrize(
    "preset", [*presets.PRESETS.values(), *by_site.PRESETS.values()], ids=lambda preset: preset.name
)
def test_heads_of_a_preset_have_the_papers_width_and_its_rows_have_widths_of_such_heads(preset):
    from fairseq.models import ARCH_CONFIG_REGISTRY

    import_plugin()
    model = argparse.Namespace(**{flag[2:].replace("-", "_"): value for flag, value in preset.model.items()})
    ARCH_CONFIG_REGISTRY[model.arch](model)
    assert model.encoder_embed_dim == D_KEY * model.encoder_attention_heads
    assert model.decoder_embed_dim == D_KEY * model.decoder_attention_heads
    for row in preset.rows:
        if width := row.recorded["d_dot"]:
            parameter_for(row.recorded["feature_map"], D_KEY, width)  # raises for a width that there is not


def run_of(preset, row="dpfp,d-dot=256", more=()):
    return TranslationRun(preset, rows.BY_NAME[row], 1, Path("runs/x"), Path("data"), more=tuple(more))


def test_rows_differ_in_attention_only():
    sites = {"--fwp-encoder", "--fwp-decoder", "--fwp-cross"}
    softmax = flags_of(commands.train(run_of(presets.WMT14, "softmax"), (0,)))
    for row in rows.ROWS:
        flags = flags_of(commands.train(run_of(presets.WMT14, row.name), (0,)))
        assert {flag for flag in flags | softmax if flags.get(flag) != softmax.get(flag)} <= sites
