from pathlib import Path

import fwp_fairseq


def test_path_is_the_package(fwp_process, tmp_path):
    root = Path(fwp_fairseq.__file__).parents[1]
    result = fwp_process("path", env={"PYTHONPATH": str(root)}, cwd=tmp_path)
    assert result.status == 0
    assert Path(result.out.removesuffix("\n")) == root / "fwp_fairseq"
