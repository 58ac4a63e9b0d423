"""The models are registered in whatever order the package, fairseq and --user-dir are imported."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.pages import ROOT

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
from argparse import Namespace

{first}
from fairseq import models, tasks, utils

for folder in {folders!r}:
    utils.import_user_module(Namespace(user_dir=folder))
    assert "delta_transformer_wmt_en_de_big" in models.ARCH_MODEL_REGISTRY and "fwp_lm" in models.MODEL_REGISTRY
    assert "fwp_language_modeling" in tasks.TASK_REGISTRY
"""
EARLY = "from fwp_fairseq import feature_maps, ops\nassert 'fairseq' not in sys.modules and 'hydra' not in sys.modules"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Copies the package and makes a link to its folder."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "fwp_fairseq", folder / "real/fwp_fairseq", ignore=shutil.ignore_patterns("__pycache__"))
    os.symlink(folder / "real", folder / "link")
    return folder / "real/fwp_fairseq"


def _script(package, first):
    linked = package.parents[1] / "link/fwp_fairseq"
    return SCRIPT.format(first=first, folders=[str(package), "fwp_fairseq/", str(linked), str(package)])


@pytest.mark.parametrize("first", ["", "import fairseq\nimport fwp_fairseq.ops"], ids=["never", "last"])
def test_models_and_tasks_are_registered(tools, package, first):
    inside = f"import os, sys; os.chdir({str(package.parent)!r}); sys.path.insert(0, '')\n"
    tools.python(inside + _script(package, first)).ok()


def test_models_and_tasks_are_registered_although_operators_came_first(package):
    """This needs a new process, in which fairseq is not imported either."""
    done = subprocess.run(
        [sys.executable, "-c", _script(package, EARLY)], cwd=package.parent, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr


def test_the_folder_that_fwp_path_prints(tools):
    printed = tools.command("fwp", "path").ok().out.strip()
    arguments = [printed if argument == tools.user_dir[1] else argument for argument in tools.training]
    assert arguments.count(printed) == 1
    tools.run("train", *arguments, "--max-update", 1, "--no-save", "--disable-validation").ok()
