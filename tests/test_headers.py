"""Every header of the CPU kernels and of what devices share can be opened, and compiled, alone."""

import os
import re
import subprocess

import pytest
from torch.utils import cpp_extension

from tests.pages import ROOT

PARTS = [ROOT / "csrc" / part for part in ("common", "cpu")]
# What a source includes first, the build compiles as if it were alone.
BUILT = [re.match(r'(?:\s|//.*\n)*#include "(.*)"', source.read_text()) for source in PARTS[1].glob("*.cpp")]
BUILT = {(PARTS[1] / include[1]).resolve() for include in BUILT if include}
HEADERS = sorted(header.relative_to(ROOT) for part in PARTS for header in {*part.rglob("*.h")} - BUILT)
assert len(HEADERS) > 20 and len(BUILT) > 4

pytestmark = [pytest.mark.slow, pytest.mark.needs("native")]


@pytest.mark.parametrize("header", HEADERS, ids=str)
def test_compiles_alone(header):
    """As a source that includes nothing else; warnings count, but for those about a header as the main file."""
    compiler = os.environ.get("CXX", "c++").split()
    folders = [f"-I{folder}" for folder in cpp_extension.include_paths()]
    flags = ["-std=c++20", "-fsyntax-only", "-x", "c++", "-Wall", "-Werror", "-Wno-psabi", "-Wno-unused-function"]
    done = subprocess.run(
        [*compiler, *flags, *folders, "-"], input=f'#include "{ROOT / header}"\n', capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[:2000]
