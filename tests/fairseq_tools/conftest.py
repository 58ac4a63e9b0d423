"""A tiny corpus and tiny models, made once, and a way to run fairseq's tools on them."""

import math
import os
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import sentencepiece
import torch

from scripts.data import multi30k
from tests import fork_client, shared
from tests.forked import Python
from tests.pages import ROOT

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("TORCH_FORCE_")},
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": "",
}
SIZES = {"train": 600, "val": 40}

# 2 + 2 layers of 32 with 2 heads of 16.
MODEL = [
    *("--arch", "fwp_transformer_tiny", "--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 64),
    *("--encoder-attention-heads", 2, "--decoder-attention-heads", 2),
]
# One epoch is 15 batches of 40 sentences.
TRAINING = [
    *("--task", "translation", "-s", "en", "-t", "de", "--cpu", "--seed", 1, "--num-workers", 0),
    *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", 1),
    *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", 10),
    *("--lr", 1e-2, "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1, "--dropout", 0.1),
    *("--batch-size", 40, "--log-format", "json", "--log-interval", 1, "--no-progress-bar"),
]
ATTENTION = {
    "mixed": ["--fwp-encoder", "elu", "--fwp-decoder", "dpfp,d-dot=64,update-rule=delta", "--fwp-cross", "gated"],
    "favor": ["--fwp-feature-map", "favor", "--fwp-d-dot", 32, "--fwp-decoder", "update-rule=delta"],
}


def pytest_collection_modifyitems(items):
    """Marks every test here as slow, because each runs several processes of fairseq."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)


@dataclass
class Result:
    status: int
    out: str
    err: str

    def ok(self) -> "Result":
        assert self.status == 0, f"exit status {self.status}\n{self.out[-3000:]}\n{self.err[-6000:]}"
        return self

    @property
    def error(self) -> str:
        """The last line of the output of a failure."""
        assert self.status > 0, f"exit status {self.status}\n{self.out[-3000:]}\n{self.err[-6000:]}"
        return self.err.strip().splitlines()[-1]

    def losses(self, key: str = "loss") -> list[float]:
        """One number per update, or per epoch for keys such as ``valid_loss``; all are finite."""
        found = [float(value) for value in re.findall(rf'[{{ ]"{key}": "([^"]+)"', self.out)]
        assert all(map(math.isfinite, found)), found
        return found

    def lines(self, kind: str) -> list[str]:
        """The lines H-0, H-1, ... or D-0, D-1, ... of fairseq-generate and -interactive, in order of the sentences."""
        found = re.findall(rf"^{kind}-(\d+)\t(.*)$", self.out, re.MULTILINE)
        return [text for _, text in sorted(found, key=lambda pair: int(pair[0]))]

    def scores(self) -> list[float]:
        """The scores of all tokens of all sentences, printed with four digits."""
        return [float(score) for line in self.lines("P") for score in line.split()]

    def translations(self) -> list[str]:
        return [line.split("\t")[1] for line in self.lines("H")]


# Around the code that runs before a tool, which sees neither the folder nor ``-c``.
BEGIN = "import importlib, sys\nsys.path.pop(0)\nsys.argv[0] = {tool!r}\n"
MAIN = "\nimportlib.import_module('fairseq_cli.{tool}').cli_main()\n"


class Tools:
    """fairseq's commands in a folder of this process; they run in processes that are forked: see tests/forked.py."""

    root = ROOT
    user_dir = ("--user-dir", str(ROOT / "fwp_fairseq"))
    attention = ATTENTION
    usual, training = TRAINING, ("bin", *user_dir, *MODEL, *TRAINING)

    def __init__(self, folder: Path, common: Path, forked: Python):
        self.folder, self.common, self.forked = folder, common, forked
        (folder / "logs").mkdir()
        self._numbers = count()

    def run(self, tool: str, *arguments, **keywords) -> Result:
        """Runs one process; ``stdin`` is its input, and ``prelude`` Python code that it runs before the tool."""
        return self.run_together([(tool, arguments)], **keywords)[0]

    def run_together(self, commands: list[tuple], stdin: str = "", prelude: str = "") -> list[Result]:
        """Runs processes at the same time. A tuple of a command may have a prelude of its own after the arguments."""
        running = []
        for tool, arguments, *own in commands:
            base = self.folder / "logs" / f"{next(self._numbers)}.{tool}"
            stdin_path, *outputs = (base.with_name(f"{base.name}.{name}") for name in ("stdin", "stdout", "stderr"))
            stdin_path.write_text(stdin, encoding="utf-8")
            code = BEGIN.format(tool=tool) + "".join([prelude, *own])
            code += "" if tool == "python" else MAIN.format(tool=tool)
            with open(stdin_path) as given, open(outputs[0], "w") as out, open(outputs[1], "w") as err:
                words = ["-c", code, *map(str, arguments)]
                running.append((self.forked.start(words, self.folder, ENVIRONMENT, [given, out, err]), outputs))
        return [
            Result(fork_client.wait(process), *(path.read_text(encoding="utf-8") for path in outputs))
            for process, outputs in running
        ]

    def python(self, code: str) -> Result:
        """Runs a script in a separate process."""
        return self.run("python", prelude=code)

    def train(self, save_dir: str | Path, *arguments, without: tuple = (), data: str = "bin", **keywords) -> Result:
        """Trains; ``without`` lists flags of the usual training, each with one value, that are left out."""
        usual = [data, *self.training[1:]]
        for flag in without:
            del usual[usual.index(flag) : usual.index(flag) + 2]
        return self.run("train", *usual, "--save-dir", save_dir, *arguments, **keywords)

    def generate(self, path: str, *arguments, data: str = "bin", **keywords) -> Result:
        """Translates the 40 sentences of ``test``, or of another --gen-subset."""
        return self.run(
            *("generate", data, *self.user_dir, "--task", "translation", "-s", "en", "-t", "de", "--cpu"),
            *("--path", path, "--batch-size", 16, "--required-batch-size-multiple", 1, "--max-len-b", 30, *arguments),
            **keywords,
        )

    def command(self, *arguments, folder: Path | None = None, fresh: bool = False, stdin: str = "") -> Result:
        """Runs a command by its name in a folder, if ``fresh`` in a process that is not forked."""
        program = (Path(sys.executable).parent if fresh else self.forked.bin) / arguments[0]
        words = [str(argument) for argument in (program, *arguments[1:])]
        options = {"cwd": folder or self.folder, "env": ENVIRONMENT, "text": True, "input": stdin}
        found = subprocess.run(words, timeout=600, capture_output=True, **options)
        return Result(found.returncode, found.stdout, found.stderr)

    def shell(self, code: str, folder: Path | None = None, fresh: bool = False) -> Result:
        """Runs commands in bash, which finds programs that are not forked if ``fresh``; all must succeed."""
        programs = Path(sys.executable).parent if fresh else self.forked.bin
        path = f"export PATH={shlex.quote(str(programs))}:$PATH\n"
        return self.command("/bin/bash", "-euc", path + code, folder=folder).ok()

    def write_texts(self, folder: Path) -> Path:
        """Writes texts for `fwp train`: 40 sentences to train and to validate on, of which five are the test set."""
        folder.mkdir()
        for language in ("en", "de"):
            lines = (self.folder / "raw" / f"val.{language}").read_text(encoding="utf-8").splitlines(keepends=True)
            for part, number in (("train", 40), ("valid", 40), ("test", 5)):
                (folder / f"{part}.{language}").write_text("".join(lines[:number]), encoding="utf-8")
        return folder

    def load(self, path: str) -> dict:
        from fwp_fairseq.compat import safe_globals  # noqa: F401 - torch.load knows by it what fairseq writes

        return torch.load(self.folder / path, map_location="cpu", weights_only=True)


@pytest.fixture(scope="session")
def tools(tmp_path_factory, forked_python):
    """The tools, in a folder with raw, encoded and binarised text: sets train, valid, test and test1.

    test equals valid; test1 has two sources of 300 and 600 words, while the longest in train has less than 40. Each
    process that runs tests has such a folder; all of them share the text, and the models trained for several tests.
    """
    common = shared.folder(tmp_path_factory) / "fairseq-common"
    found = Tools(tmp_path_factory.mktemp("fairseq"), common, forked_python)
    shared.once(found.common / "corpus.json", partial(_make_corpus, found))
    for name in ("raw", "bpe", "bin", "spm.model"):
        (found.folder / name).symlink_to(found.common / name)
    return found


def _make_corpus(tools: Tools) -> None:
    folder = tools.common
    for name in ("raw", "bpe", "multi30k"):
        (folder / name).mkdir()
    multi30k.provide(folder / "multi30k", print)
    for language in ("en", "de"):
        for name, number in SIZES.items():
            lines = (folder / f"multi30k/{name}.{language}").read_text("utf-8").split("\n")
            text = "".join(f"{line.strip()}\n" for line in lines[:number])
            (folder / "raw" / f"{name}.{language}").write_text(text, encoding="utf-8")
        words = " ".join(lines[:60]).split()
        (folder / "raw" / f"long.{language}").write_text(
            " ".join(words[:300]) + "\n" + " ".join(words[:600]) + "\n", encoding="utf-8"
        )
    sentencepiece.SentencePieceTrainer.train(
        input=",".join(str(folder / "raw" / f"train.{language}") for language in ("en", "de")),
        model_prefix=str(folder / "spm"),
        model_type="bpe",
        vocab_size=500,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    for path in (folder / "raw").iterdir():
        pieces = processor.encode(path.read_text(encoding="utf-8").splitlines(), out_type=str)
        (folder / "bpe" / path.name).write_text("".join(" ".join(p) + "\n" for p in pieces), encoding="utf-8")
    text = {name: f"{folder}/bpe/{name}" for name in ("train", "val", "long")}
    tools.run(
        *("preprocess", *tools.user_dir, "-s", "en", "-t", "de", "--destdir", folder / "bin", "--joined-dictionary"),
        *("--trainpref", text["train"], "--validpref", text["val"], "--testpref", f"{text['val']},{text['long']}"),
        *("--workers", 1),
    ).ok()


def _trained(tools: Tools, name: str, *arguments) -> Result:
    """Runs once a training that several tests use; ``name`` is the folder of its checkpoints."""
    common = tools.common / name
    made = shared.once(common.with_suffix(".json"), lambda: asdict(tools.train(common, *arguments).ok()))
    (tools.folder / name).symlink_to(common)
    return Result(**made)


@pytest.fixture(scope="session")
def mixed(tools) -> Result:
    """A training with elu, dpfp with delta rule, and gated dpfp at the three sites, validated with BLEU."""
    return _trained(
        *(tools, "mixed", *ATTENTION["mixed"], "--max-epoch", 6, "--validate-interval", 3, "--save-interval", 3),
        *("--eval-bleu", "--eval-bleu-remove-bpe", "sentencepiece", "--eval-bleu-args", '{"beam": 2, "max_len_b": 30}'),
        *("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"),
    )


@pytest.fixture(scope="session")
def favor(tools) -> Result:
    """A training with FAVOR+ at all three sites."""
    return _trained(tools, "favor", *ATTENTION["favor"], "--max-epoch", 5)
