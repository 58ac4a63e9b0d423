import importlib
import multiprocessing
import os
import signal
import subprocess
import sys

import pytest

from scripts.common import records
from scripts.common.runner.run import Run
from tests.full_disk import full_disk
from tests.pages import ROOT


def recipe(name):
    return importlib.import_module(f"scripts.experiments.{name}.recipe").EXPERIMENT


def test_append_then_read(tmp_path):
    path = tmp_path / "new" / "runs.jsonl"
    records.append(path, {"bleu": 36.9, "text": "größer\nzwei\u2028Zeilen\x85"})
    records.append(path, {"bleu": 37.0})
    assert path.read_bytes().count(b"\n") == 2
    assert records.read(path.parent) == [{"bleu": 36.9, "text": "größer\nzwei\u2028Zeilen\x85"}, {"bleu": 37.0}]


def test_read_orders_by_date_over_files(tmp_path):
    for name, date in (("a", "2026-03-01"), ("b", "2026-01-01"), ("a", "2026-02-01")):
        records.append(tmp_path / f"{name}.jsonl", {"environment": {"date": date}})
    dates = [record["environment"]["date"] for record in records.read(tmp_path)]
    assert dates == ["2026-01-01", "2026-02-01", "2026-03-01"]


@pytest.mark.parametrize("name", ["bleu_vs_d_dot", "language_models", "state_tracking", "synthetic"])
def test_recorded_rows_are_known_by_the_names_of_the_rows_of_today(name):
    """So that no recorded run is trained again, and no table shows one attention under two names."""
    experiments = [recipe(name), *([recipe("by_site")] if name == "bleu_vs_d_dot" else [])]
    known = set()
    for experiment in experiments:
        runs = [(preset, row) for preset in experiment.presets.values() for row in preset.rows]
        known |= {experiment.key_of(Run(*run, seed, None, None)) for run in runs for seed in range(10)}
    assert experiments[0].recorded(records.FOLDER / experiments[0].file) <= known


@pytest.mark.parametrize(
    "line",
    [
        '{"bleu": 3', "[1]", "null", '{"bleu": NaN}', '{"table": ["a"]}', '{"environment": "x"}',
        '{"environment": [1]}', '{"environment": {"date": 3}}',
    ],
)  # fmt: skip
def test_damaged_line_is_named(tmp_path, line):
    (tmp_path / "a.jsonl").write_text(f"{{}}\n{line}\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:2"):
        records.read(tmp_path)


def test_damaged_text_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ValueError, match=r"a\.jsonl: .*can't decode byte 0xff"):
        records.read(tmp_path)


def test_append_refuses_what_is_not_json(tmp_path):
    path = tmp_path / "a.jsonl"
    for record in ({"loss": float("nan")}, {"path": tmp_path}):
        with pytest.raises((ValueError, TypeError)):
            records.append(path, record)
    assert not path.exists()


def test_append_after_an_unfinished_line_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"bleu": 3')
    with pytest.raises(ValueError, match="does not end with a newline"):
        records.append(path, {})
    assert path.read_text() == '{"bleu": 3'


def _limited_append(path):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    exec(full_disk(100))
    try:
        records.append(path, {"text": "x" * 200})
    except OSError:
        os._exit(7)


def test_full_disk_leaves_earlier_records(tmp_path):
    path = tmp_path / "a.jsonl"
    records.append(path, {"bleu": 1})
    before = path.read_bytes()
    process = multiprocessing.get_context("fork").Process(target=_limited_append, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == 7
    assert path.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("key, times", [("None", 4), ("dict", 1)])
def test_parallel_runs_do_not_interleave_and_append_what_is_new(tmp_path, forked_python, key, times):
    path = tmp_path / "a.jsonl"
    code = (
        "import sys; from scripts.common.records import append\n"
        f"append(sys.argv[1], *({{'i': i, 'text': 'ä' * 5000}} for i in range(60)), key={key})"
    )
    runs = [subprocess.Popen([forked_python.program, "-c", code, str(path)], cwd=ROOT) for _ in range(4)]
    assert [run.wait() for run in runs] == [0] * 4
    assert [record["i"] for record in records.read_file(path)] == list(range(60)) * times


def test_known_records_are_not_appended_again(tmp_path):
    path = tmp_path / "a.jsonl"
    first, second, other = ({"row": row, "bleu": bleu} for row, bleu in (("a", 1), ("b", 2), ("a", 3)))
    assert records.append(path, first, key=dict) == 1
    assert records.append(path, first, second, key=dict) == 1
    assert records.append(path, other, key=lambda record: record["row"]) == 0
    assert records.append(path, other, key=dict) == 1
    assert records.read_file(path) == [first, second, other]


def test_records_are_utf_8_whatever_the_locale(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "größer"}\n', encoding="utf-8")
    code = "import sys; from scripts.common.records import read; print(ascii([r['text'] for r in read(sys.argv[1])]))"
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code, tmp_path]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (ascii(["größer"]), "")


def _git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "core.hooksPath=/dev/null"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def test_commit_and_dirty(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(records, "PACKAGE", package)
    assert records._checkout() == {"commit": None, "dirty": None}
    monkeypatch.setenv("FWP_COMMIT", "0123456789" * 4)
    assert records._checkout() == {"commit": "0123456789" * 4, "dirty": False}
    _git(tmp_path, "init")
    assert records._checkout() == {"commit": None, "dirty": None}, "the copy is not tracked"
    _git(tmp_path, "add", "-A")
    _git(tmp_path, "commit", "-m", "first")
    found = records._checkout()
    assert len(found["commit"]) == 40 and found["dirty"] is False
    assert found["commit"] != "0123456789" * 4, "a checkout speaks for itself"
    monkeypatch.setenv("FWP_COMMIT", "main")
    with pytest.raises(ValueError, match="FWP_COMMIT: expected the 40 hexadecimal digits"):
        records._checkout()
    monkeypatch.delenv("FWP_COMMIT")
    records.append(tmp_path / "benchmarks" / "results" / "a.jsonl", {})
    (tmp_path / "README.md").write_text("table")
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "docs" / "figures" / "a.svg").write_text("plot")
    assert records._checkout()["dirty"] is False, "what records generate is not a change of the code"
    (package / "__init__.py").write_text("changed")
    assert records._checkout()["dirty"] is True
