"""Tests recipes in an environment other than .venv: its Python runs every tool, and nothing is installed."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def environment(folder: Path) -> Path:
    """Makes a virtual environment with the packages of this one, and returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    ).stdout.strip()
    for path in {sysconfig.get_path(name) for name in ("purelib", "platlib")}:
        Path(site, "packages.pth").write_text(f"import site; site.addsitedir({path!r})\n")
    return python


def test_a_tool_runs_in_the_running_interpreter(tmp_path):
    other = environment(tmp_path / "env")
    (tmp_path / "text.en").write_text("two dogs play\ntwo dogs sleep\n")
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from scripts.common import process

tool = ["fairseq-preprocess", "-s", "en", "-t", "en", "--only-source", "--trainpref", {str(tmp_path / "text")!r}]
process.run([*tool, "--destdir", {str(tmp_path / "bin")!r}], Path({str(tmp_path / "log")!r}))
"""
    variables = {"PATH": f"{other.parent}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(["python", "-c", program], cwd=ROOT, env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "dogs 2" in (tmp_path / "bin/dict.en.txt").read_text()
    assert f"+ {other} -m fairseq_cli.preprocess" in (tmp_path / "log").read_text()
