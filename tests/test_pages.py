"""Every command of every page is run by a test or by .ci/run, or it says here why it cannot be."""

import ast

import pytest

from scripts.common.runner.call import ON_FINISHED
from tests.pages import PAGES, ROOT, blocks, commands

NOT_RUN = {
    "installs from a package index; scripts/environment.sh does the same in .ci/run": [
        "pip install torch",
        "pip install numpy cython setuptools wheel packaging",
        "env -u CUDA_HOME pip install --no-build-isolation fairseq-fixed==0.12.3.1",
        "FWP_BUILD=cpu pip install --no-build-isolation -e '.[eval]'",
    ],
    "downloads Debian's packages": [
        "apt-get download libreoffice-help-en-us libreoffice-help-de gimp-help-en gimp-help-de",
        "apt-get download $(sed",
        "python -m scripts.experiments.documents.extract ",
        "FWP_DATA=data python -m scripts.experiments documents --preset long --prepare",
    ],
    "downloads WMT's test sets": ["mkdir -p data/wmt", "for kind in doc:docid "],
    "needs GPUs, several machines or SLURM": ["fairseq-train FLAGS", "torchrun --nnodes 2", "srun "],
    "compares finished trainings of hours": [
        "python -m scripts.experiments by_site --preset sites --rows dpfp,d-dot=256_dpfp,d-dot=256_softmax "
        "--seeds 1 2 3 --compare softmax",
        "python -m scripts.experiments documents --preset long --rows hybrid --seeds 1 2 3 --compare softmax",
    ],
    "is the suite itself, or changes sources; .ci/run has these, and tests/scripts/test_shell.py their arguments": [
        "scripts/test.sh ",
        ".ci/run",
        ".venv/bin/ruff check . && .venv/bin/ruff format .",
    ],
    "takes 20 minutes; .ci/run has it with --smoke": ["scripts/quickstart.sh"],
}


def taken() -> list[tuple]:
    """The words that tests give to `block`, `command` and `everywhere`, behind the name of the function."""
    here = {ROOT / "tests/pages.py", ROOT / "tests/test_pages.py"}
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in {*(ROOT / "tests").rglob("*.py")} - here]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [getattr(call.func, "id", "") for call in calls]
    return [
        (name, *map(ast.literal_eval, call.args))
        for name, call in zip(names, calls, strict=True)
        if name in ("block", "command", "everywhere")
    ]


def test_every_command_runs():
    run, used, left = taken(), set(), []
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    excused = [beginning for beginnings in NOT_RUN.values() for beginning in beginnings]
    for page in PAGES:
        for block in blocks(page):
            if any(kind == "block" and page == where and block.startswith(*words) for kind, where, *words in run):
                continue
            for line in commands(block):
                # What needs finished runs is left out of tests/scripts/test_documented.py.
                kinds = ("command",) if {*ON_FINISHED} & {*line.split()} else ("command", "everywhere")
                by_tests = any(
                    line.startswith(words[-1]) and words[1:-1] in ((), (page,)) for words in run if words[0] in kinds
                )
                reasons = {beginning for beginning in excused if line.startswith(beginning)}
                used |= reasons
                if not (by_tests or reasons or f"{line}\n" in ci):
                    left.append(f"{page}: {line}")
    assert left == []
    assert [beginning for beginning in excused if beginning not in used] == []


@pytest.mark.parametrize("page", PAGES)
def test_each_training_has_a_folder_of_its_own(page):
    """Otherwise the next one would go on with its checkpoints."""
    trainings = [line for block in blocks(page) for line in commands(block) if line.startswith("fairseq-train data")]
    assert [line for line in trainings if "--save-dir" not in line and "..." not in line] == []
