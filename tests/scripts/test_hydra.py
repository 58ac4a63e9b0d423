"""The jobs of the Hydra multirun are the same trainings as those of run.py."""

from pathlib import Path

import pytest
import yaml

from fwp_fairseq.cli.plugin import import_plugin
from scripts.hydra import attention, jobs
from scripts.reproduce.wmt14_bleu_vs_d_dot import commands, presets
from scripts.reproduce.wmt14_bleu_vs_d_dot.commands import Devices, Run
from scripts.results import rows

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
NAME = "wmt14_bleu_vs_d_dot"
SECTIONS = (
    *("common", "task", "model", "criterion", "optimizer", "lr_scheduler"),
    *("optimization", "dataset", "distributed_training", "checkpoint"),
)
# Not compared: paths, output formats, and options of which fairseq keeps a copy elsewhere.
OTHERWISE = {"_name", "data", "save_dir", "user_dir", "arch", "distributed_num_procs", "distributed_init_method"}


@pytest.fixture(scope="module")
def composed():
    return list(jobs.jobs(NAME, []))


def test_every_row_is_a_job(composed):
    assert [job for job, _ in composed] == [[f"attention={row.name}"] for row in rows.ROWS]
    assert [cfg.checkpoint.save_dir for _, cfg in composed] == [
        f"{Path.cwd()}/runs/wmt14_bleu_vs_d_dot/wmt14/{row.name}-seed1/checkpoints" for row in rows.ROWS
    ]


def options_of_run_py(row):
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    import_plugin()
    preset = presets.WMT14
    choices = {option: values[0] for option, values in preset.choices.items()}
    run = Run(preset, row, 1, Path("runs") / row.name, Path("data"), choices)
    command = commands.train(run, Devices(tuple(range(8))))
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command[1:]))


def plain(section):
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(section, resolve=True, enum_to_str=True)
    return {key: float(value) if isinstance(value, int) else value for key, value in values.items()}


@pytest.mark.parametrize("index", [0, 1, 4, 7])
def test_a_job_is_the_training_that_run_py_starts(composed, index, monkeypatch):
    from fairseq.dataclass.initialize import add_defaults

    monkeypatch.chdir(ROOT)
    wanted = options_of_run_py(rows.ROWS[index])
    cfg = composed[index][1]
    add_defaults(cfg)
    for name in SECTIONS:
        ours, theirs = plain(cfg[name]), plain(wanted[name])
        keys = (ours.keys() & theirs.keys()) - OTHERWISE
        assert keys
        different = {key: (ours[key], theirs[key]) for key in keys if ours[key] != theirs[key]}
        assert different == {}, name


def test_dry_run_prints_the_jobs(capsys):
    assert jobs.main([NAME, "attention=elu-64,dpfp-256", "common.seed=1,2"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(
        "# fairseq-hydra-train -m --config-dir scripts/hydra --config-name wmt14_bleu_vs_d_dot"
    )
    assert [line for line in printed[1:] if line.startswith("#")] == [
        "#0 attention=elu-64 common.seed=1",
        "#1 attention=elu-64 common.seed=2",
        "#2 attention=dpfp-256 common.seed=1",
        "#3 attention=dpfp-256 common.seed=2",
    ]
    assert "dpfp-256-seed2/checkpoints" in printed[-1]


def test_unknown_configuration_is_refused_with_those_there_are(capsys):
    assert jobs.main(["wmt15"]) == 2
    assert NAME in capsys.readouterr().err


def test_files_of_rows_are_the_rows():
    found = {path.stem: yaml.safe_load(path.read_text()) for path in (jobs.FOLDER / "attention").glob("*.yaml")}
    assert found == {
        row.name: {
            "fwp_feature_map": row.feature_map,
            "fwp_d_dot": row.d_dot,
            "fwp_update_rule": row.update_rule or "sum",
            "fwp_normalizer": row.normalizer or "auto",
        }
        for row in rows.ROWS
    }


def test_files_of_rows_are_as_they_are_generated():
    assert {path: path.read_text() for path in attention.files()} == attention.files()
