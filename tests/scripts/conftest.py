import sys

import pytest

from tests.pages import ROOT
from tests.scripts.recipe_runs import made

# Each tool notes in the file `calls` that it ran. The environment variable FAKE controls the tools that have FAKE_IN
# among their arguments.
TOOLS = {
    "fairseq-preprocess": """
        write(flag("--destdir") / "dict.de.txt", "")
    """,
    "fairseq-train": """
        import zipfile
        checkpoints = flag("--save-dir")
        if "--finetune-from-model" in sys.argv:
            assert flag("--finetune-from-model").exists() and "--encoder-layers" in sys.argv
        checkpoints.mkdir(parents=True, exist_ok=True)
        done = len(list(checkpoints.glob("checkpoint?.pt")))
        print("x | INFO | fairseq_cli.train | num. shared model params: 1,234 (num. trained: 1,234)")
        for epoch in range(done + 1, 4):
            if FAKE == f"fail in epoch {epoch}":
                sys.exit("RuntimeError: pretended")
            loss = FAKE if FAKE == "nan" else 9 - epoch
            log("train_inner", epoch=epoch, update=epoch - 0.5, loss=str(loss), num_updates=str(10 * epoch - 5))
            bleu = {"valid_bleu": str(20 + epoch)} if "--eval-bleu" in sys.argv else {}
            log("valid", epoch=epoch, valid_loss=str(8 - epoch), **bleu)
            log("train", epoch=epoch, train_loss=str(loss), train_num_updates=str(10 * epoch), train_wall="7")
            for name in (f"checkpoint{epoch}.pt", "checkpoint_best.pt", "checkpoint_last.pt"):
                with zipfile.ZipFile(checkpoints / name, "w") as file:
                    file.writestr("epoch", str(epoch))
            if FAKE == f"hang after epoch {epoch}":
                hang()
    """,
    "fairseq-generate": """
        assert flag("--path").exists() or "average" in str(flag("--path"))
        number = 100 if "test1" in sys.argv else 1000
        lines = [f"S-{i}\\ta\\nH-{i}\\t-1\\t_b\\nD-{i}\\t-1\\tsatz {i}" for i in range(number)]
        speed = "(50.50 sentences/s, 250.0 tokens/s)"
        lines.insert(0, f"NOTE | Translated {number:,} sentences (5,000 tokens) in 20.0s {speed}")
        write(flag("--results-path") / f"generate-{flag('--gen-subset')}.txt", "\\n".join(reversed(lines)) + "\\n")
    """,
    "fairseq-interactive": """
        length = int(str(flag("--max-len-b")))
        for i, line in enumerate(flag("--input").read_text().splitlines()):
            print(f"S-{i}\\t{line}\\nH-{i}\\t-1\\t{'x ' * length}")
        print("x | INFO | Total time: 9.000 seconds; translation time: 4.000")
    """,
    "fwp": """
        if sys.argv[1] == "average":
            write(flag("--output"), "")
        elif sys.argv[1] == "convert":
            assert flag("--input").exists()
            write(flag("--output"), "")
            sites = "; ".join(f"{site}: feature-map=elu" for site in ("cross", "decoder", "encoder"))
            model = ["--arch", "a", "--encoder-layers", "2", "--no-cross-attention", "--fwp-feature-map", "elu"]
            model += ["--fwp-decoder", "elu,d-dot=8", "--data-name", "two words"]
            write(flag("--flags-json"), json.dumps({"attention": sites, "flags": model}))
            print("a line\\n  --user-dir of-an-attacker")
        else:
            assert flag("--hypotheses").exists()
            if FAKE == "hang in fwp":
                print("[", flush=True)
                hang()
            scores = [{"name": "BLEU", "score": 31.4, "signature": "nrefs:1|case:mixed"}]
            if "--compound-split" in sys.argv:
                scores.append({"name": "BLEU", "score": 32.1, "signature": "nrefs:1|tok:split"})
            print(json.dumps(scores, indent=1))
    """,
}
HEAD = f"""#!{sys.executable}
import json, os, sys, time
from pathlib import Path
FAKE = os.environ.get("FAKE", "") if os.environ.get("FAKE_IN", "") in " ".join(sys.argv) else ""
def flag(name): return Path(sys.argv[sys.argv.index(name) + 1])
def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    if FAKE == f"hang in {{Path(sys.argv[0]).name}}":
        path.write_text(text[: len(text) // 2])
        hang()
    part.replace(path)
def hang():
    Path("hanging").write_text(str(os.getpid()))
    time.sleep(60)
def log(kind, **values): print(f"x | INFO | {{kind}} | {{json.dumps(values)}}")
with open("calls", "a") as file: print(Path(sys.argv[0]).name, *sys.argv[1:2], file=file)
"""


@pytest.fixture
def fake_root(tmp_path, monkeypatch):
    """Makes a temporary folder the repository root of recipes, which then run fakes of the tools; returns it."""
    from scripts.common import commands, process, program

    monkeypatch.setattr(commands, "TOOLS", made(tmp_path / "bin", HEAD, TOOLS))
    monkeypatch.setattr(process, "ROOT", tmp_path)
    monkeypatch.setattr(program, "stop_on_signals", lambda: None)
    monkeypatch.chdir(tmp_path)
    for name in ("FAKE", "FAKE_IN", "FWP_CALLER_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def root(fake_root, monkeypatch):
    """`fake_root` on a CPU, with a corpus of 100 sentences in each file."""
    from scripts.common.runner import gpus
    from scripts.data import corpus

    def make(data, say):
        for path in corpus.outputs(data):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("A sentence.\n" * 100)
        return {}

    monkeypatch.setattr(corpus, "make", make)
    monkeypatch.setattr(gpus, "chosen", lambda given: ())
    (fake_root / "softmax.pt").write_text("")
    return fake_root


@pytest.fixture
def real_root(forked_python, monkeypatch):
    """Recipes run the real tools in this repository, in processes that are forked, with one thread."""
    from scripts.common import commands, program

    tools = {name: [str(forked_python.program), *words] for name, (_, *words) in commands.TOOLS.items()}
    monkeypatch.setattr(commands, "TOOLS", tools)
    monkeypatch.setattr(program, "stop_on_signals", lambda: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(ROOT)


@pytest.fixture
def checkout(monkeypatch):
    """Returns a function that sets what records say of the checkout: local changes (None: unknown) and commit."""
    from scripts.common import records

    environment = records.environment()

    def pretend(dirty, commit="c" * 40):
        monkeypatch.setattr(records, "environment", lambda: environment | {"dirty": dirty, "commit": commit})

    return pretend
