import os
import subprocess
from pathlib import Path

import pytest

import fwp_fairseq


def test_list(fwp):
    heading, *lines = (line.split("  ") for line in fwp("archs").out.splitlines())
    titles = [title.strip() for title in heading if title]
    rows = {line[0]: dict(zip(titles, (cell.strip() for cell in line if cell), strict=True)) for line in lines}
    big = rows["fwp_transformer_vaswani_wmt_en_de_big"]
    assert [big[name] for name in ("layers", "embed", "heads", "ffn")] == ["6", "1024", "16", "4096"]
    delta, linear = (rows[f"{name}_transformer_wmt_en_de_big"] for name in ("delta", "linear"))
    assert [rows["transformer_xl_lm"][name] for name in ("attention", "d_dot")] == ["softmax", "-"]
    assert delta["attention"] == "dpfp,d-dot=256,update-rule=delta" and linear["attention"] == "elu"
    assert delta["d_dot"] == "256" and linear["d_dot"] == "64"
    assert rows["fwp_transformer_tiny_hybrid"]["attention"] == "delta,passes=both-ways / delta / softmax"
    assert not any(name.startswith("transformer_lm") for name in rows)


def test_flags_after_the_preset(fwp):
    lines = fwp("archs", "fwp_transformer_tiny").out.splitlines()
    assert {"--encoder-embed-dim  [192]", "--decoder-ffn-embed-dim  [384]"} <= set(lines)
    map_line = next(number for number, line in enumerate(lines) if line.startswith("--fwp-feature-map  "))
    assert lines[map_line].startswith("--fwp-feature-map  [dpfp]  {softmax,") and "phi" in lines[map_line + 1]
    hybrid = fwp("archs", "fwp_transformer_tiny_hybrid").out.splitlines()
    assert {"--fwp-encoder  [delta,passes=both-ways]", "--fwp-decoder  [delta]", "--fwp-cross  [softmax]"} <= set(
        hybrid
    )


def test_defaults_are_those_of_fairseq_train(fwp):
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from omegaconf import OmegaConf

    from fwp_fairseq.cli import archs

    for arch in ("fwp_transformer_tiny", "delta_transformer_wmt_en_de_big"):
        parser = options.get_training_parser()
        args = options.parse_args_and_arch(parser, ["DATA", "--arch", arch, "--task", "translation"])
        model = OmegaConf.to_container(convert_namespace_to_omegaconf(args).model, resolve=True, enum_to_str=True)
        mine = {name: value for name, value in archs.defaults(arch).items() if not str(value).startswith("${")}
        assert {name: model[name] for name in mine if name != "_name"} == {
            k: v for k, v in mine.items() if k != "_name"
        }


@pytest.mark.slow  # the plugin first, and neither of them: tests/fairseq_tools/test_user_dir.py
def test_fairseqs_models_may_be_imported_before(forked_python):
    code = "import fairseq.models; from fwp_fairseq.cli import main; raise SystemExit(main(['archs', 'fwp_lm']))"
    done = subprocess.run([forked_python.program, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "--fwp-feature-map" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "error, advice",
    [
        ("ImportError('broken')", "pip install --no-build-isolation fairseq-fixed"),
        ("ValueError('mutable default CommonConfig for field common')", "pip uninstall fairseq"),
    ],
)
def test_no_usable_fairseq(fwp_process, tmp_path, error, advice):
    (tmp_path / "fairseq.py").write_text(f"raise {error}")
    search = os.pathsep.join([str(tmp_path), str(Path(fwp_fairseq.__file__).parents[1])])
    result = fwp_process("archs", cwd=tmp_path, env={**os.environ, "PYTHONPATH": search})
    assert result.status == 1 and result.err.startswith("fwp archs: error: ") and result.err.count("\n") == 1
    assert advice in result.err
