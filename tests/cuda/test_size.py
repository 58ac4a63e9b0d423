"""csrc/cuda stays small enough to read, to compile and to fit into registers; its records say so."""

import re

from scripts.kernel_resources import DEVICES, PAGE, SPILLED
from tests.cuda.compiled import CUDA, INSTANCES

KERNELS, ALL, SOURCES, WORDS, SECONDS = 2600, 4000, 10, 1500, 2 * 300  # of two processors
APART = re.compile("recurrence|lstm|row_functions")  # which stand beside the operator and its decoding


def test_lines_and_words():
    lines = {
        path: path.read_text().count("\n") for kind in ("*.cu", "*.cuh", "*.h", "*.cpp") for path in CUDA.rglob(kind)
    }
    assert sum(lines.values()) <= ALL
    assert sum(count for path, count in lines.items() if not APART.search(str(path.relative_to(CUDA)))) <= KERNELS
    assert len(list(INSTANCES.iterdir())) <= SOURCES
    assert len((CUDA / "README.md").read_text(encoding="utf-8").split()) <= WORDS


def test_what_nvcc_has_made_of_them():
    page = PAGE.read_text(encoding="utf-8")
    rows = [line.split("|")[3:-1] for line in page.splitlines() if "_kernel" in line]
    assert len(rows) > 30 and all(int(spilled) <= SPILLED for row in rows for spilled in row[1::2])
    for device in DEVICES:
        assert int(re.search(rf"{device} (\d+)[,.]", page.rpartition("Seconds")[2])[1]) <= SECONDS
