"""python -m scripts.size counts lines, words, and what is too long."""

import subprocess

from scripts import size


def test_what_is_counted(tmp_path):
    long = "def f():\n" + "    1\n" * 50
    for path, text in {
        "fwp_fairseq/a.py": "x = 1\ny = 2\n",
        "csrc/cpu/a.h": "1\n2\n3\n",
        "csrc/cuda/a.cu": "1\n" * 351,
        "scripts/a.py": long,
        "scripts/b.sh": "#!/bin/sh\n",
        "benchmarks/results/a.jsonl": "{}\n",
        "tests/a.py": "def g():\n    return 1\n",
        "README.md": "some words\nand more\n",
        "untracked.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for command in (["init", "-q"], ["add", "fwp_fairseq", "csrc", "scripts", "benchmarks", "tests", "README.md"]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    assert size.report(tmp_path) == [
        "     2 lines  package (1 files)",
        "     3 lines  csrc without cuda (1 files)",
        "   351 lines  csrc/cuda (1 files)",
        "    52 lines  scripts (2 files)",
        "     0 lines  benchmarks (0 files)",
        "     2 lines  tests (1 files)",
        "     4 words  README.md",
        "   351 lines  file csrc/cuda/a.cu",
        "    51 lines  function scripts/a.py: f",
    ]
