"""The commands of the experiments' pages, with --dry-run, and those of their tables, with the committed records."""

import shlex

import pytest

from scripts.common.commands import PYTHON
from scripts.common.runner.call import ON_FINISHED
from scripts.experiments.__main__ import main
from scripts.results.__main__ import main as results
from tests.pages import ROOT, everywhere

# What needs finished runs has tests of its own.
EXPERIMENTS = [line for line in everywhere("python -m scripts.experiments ") if not {*ON_FINISHED} & {*line.split()}]
TABLES = everywhere("python -m scripts.results ")


@pytest.mark.parametrize("line", EXPERIMENTS)
def test_experiments(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    more = ["--cpu"] if "--prepare" in line else []  # which needs no GPU; what is printed, where wmt14 trains, would
    words = shlex.split(line)[3:]
    end = words.index("--") if "--" in words else len(words)
    assert main([*words[:end], "--dry-run", *more, *words[end:]]) == 0
    assert capsys.readouterr().out.startswith(("# ", f"{PYTHON} -m "))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", TABLES)
def test_tables(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[3:]
    folder = tmp_path / words[words.index("--results") + 1]
    folder.mkdir(parents=True)
    for path in (ROOT / "benchmarks/results").glob("*.jsonl"):
        (folder / path.name).symlink_to(path)
    assert results(words) == 0
    assert capsys.readouterr().out.count("\n|") > 4
    if "--plot" in words:
        assert "<svg" in (tmp_path / words[words.index("--plot") + 1]).read_text(encoding="utf-8")
