"""Tests recipes in an environment other than .venv: its Python runs every tool, and nothing is installed."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
RUN = ["-m", "scripts.experiments", "bleu_vs_d_dot"]


def make(folder: Path) -> Path:
    """Makes a virtual environment without packages and returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Makes an environment with the packages of this one. Each start of its Python is noted in the file $SEEN."""
    python = make(tmp_path_factory.mktemp("other") / "env")
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    ).stdout.strip()
    for path in {sysconfig.get_path(name) for name in ("purelib", "platlib")}:
        Path(site, "packages.pth").write_text(f"import site; site.addsitedir({path!r})\n")
    note = "import os, sys; 'SEEN' in os.environ and open(os.environ['SEEN'], 'a').write(sys.prefix + '\\n')"
    Path(site, "seen.pth").write_text(note + "\n")
    return python


@pytest.fixture
def call(tmp_path):
    """Runs a command in the repository, with the active environment first on the PATH."""

    def call(active: Path, *command, **variables):
        path = f"{active.parent}:/usr/bin:/bin"
        environment = {"PATH": path, "HOME": str(tmp_path), "SEEN": str(tmp_path / "seen"), **variables}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        seen = tmp_path / "seen"
        done.seen = set(seen.read_text().split()) if seen.exists() else set()
        return done

    return call


def test_the_commands_that_are_printed_are_of_the_running_interpreter(other, call):
    done = call(other, "python", *RUN, "--preset", "smoke", "--cpu", "--dry-run", "--out", "here")
    assert (done.returncode, done.stderr) == (0, "")
    begins = [line.split()[:3] for line in done.stdout.splitlines() if line.strip() and line[0] not in " #"]
    modules = ["fairseq_cli.train", "fwp_fairseq", "fairseq_cli.generate", "fwp_fairseq"]
    assert begins == [[str(other), "-m", module] for module in modules * 2]


def test_a_tool_runs_in_the_running_interpreter(other, call, tmp_path):
    (tmp_path / "text.en").write_text("two dogs play\ntwo dogs sleep\n")
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from scripts.common import process

tool = ["fairseq-preprocess", "-s", "en", "-t", "en", "--only-source", "--trainpref", {str(tmp_path / "text")!r}]
process.run([*tool, "--destdir", {str(tmp_path / "bin")!r}], Path({str(tmp_path / "log")!r}))
"""
    done = call(other, "python", "-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert "dogs 2" in (tmp_path / "bin/dict.en.txt").read_text()
    assert f"+ {other} -m fairseq_cli.preprocess" in (tmp_path / "log").read_text()
    assert done.seen == {str(other.parents[1])}
