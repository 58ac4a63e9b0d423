"""fairseq's tools on streams of text: --task fwp_language_modeling on the characters of Tiny Shakespeare."""

import json
import re
import shlex
import subprocess
from functools import partial

import pytest

from scripts.data import sources
from scripts.experiments.language_models.data import TINY_SHAKESPEARE
from tests.fairseq_tools.test_distributed import assert_equal, by_hand
from tests.pages import ROOT, block, command, commands

LANGUAGE_MODEL = [
    *("--arch", "fwp_lm", "--decoder-embed-dim", 32, "--decoder-ffn-embed-dim", 64, "--decoder-attention-heads", 2),
    *("--decoder-layers", 2, "--share-decoder-input-output-embed", "--fwp-update-rule", "delta"),
]
MODEL = [*LANGUAGE_MODEL, "--fwp-normalizer", "both"]
# Its memory is longer than the texts.
TRANSFORMER_XL = ["--arch", "transformer_xl_lm", *MODEL[2 : MODEL.index("--fwp-update-rule")], "--mem-len", 700]
TASK = ["--task", "fwp_language_modeling", "--tokens-per-sample", 32, "--batch-size", 4]
TRAINING = [
    *("--cpu", "--seed", 1, "--num-workers", 0, "--optimizer", "adam", "--lr", 1e-2, "--clip-norm", 1),
    *("--log-format", "json", "--log-interval", 1, "--no-progress-bar", "--no-epoch-checkpoints"),
]
NO_POSITIONS = ["--no-token-positional-embeddings"]
MODELS = [MODEL + NO_POSITIONS, TRANSFORMER_XL]
UPDATES = 12


def characters(lines):
    return "".join(" ".join("▁" if letter == " " else letter for letter in line) + "\n" for line in lines)


@pytest.fixture(scope="module")
def train(tools):
    sources.provide(TINY_SHAKESPEARE, tools.folder / "shakespeare/all", print)
    lines = (tools.folder / "shakespeare/all").read_text("utf-8").splitlines()
    for name, part in {"train": lines[:80], "valid": lines[80:92]}.items():
        (tools.folder / "shakespeare" / name).write_text(characters(part), encoding="utf-8")
    tools.run(
        *("preprocess", "--only-source", "--destdir", "chars", "--workers", 1),
        *("--trainpref", "shakespeare/train", "--validpref", "shakespeare/valid"),
    ).ok()

    def run(folder, *arguments, model=(*MODEL, *NO_POSITIONS)):
        flags = (*model, *TASK, *TRAINING, "--save-dir", folder, *arguments)
        return tools.run("train", "chars", *tools.user_dir, *flags)

    return run


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model[1])
def whole(request, train):
    """Trains an epoch of nine updates of two batches and part of another one, with validation in between.

    Returns the folder of the checkpoints, and a function that trains the same model.
    """
    again = partial(train, model=request.param)
    folder = f"stream-{request.param[1]}"
    again(folder, "--update-freq", 2, "--max-update", UPDATES, "--save-interval-updates", 4).ok()
    return folder, again


def saved(tools, folder: str) -> dict:
    return tools.load(f"{folder}/checkpoint_last.pt")


def weights(checkpoint: dict) -> dict:
    """The tensors of the carried states in a checkpoint, by layer and number, of all rows."""
    found = checkpoint["extra_state"]["train_iterator"]["streams"]["weights"]
    return {(layer, number): x for layer, state in found.items() for number, x in enumerate(state)}


def test_interrupted_in_mid_epoch(tools, whole):
    folder, train = whole
    expected, parts = saved(tools, folder), f"{folder}-parts"
    assert expected["extra_state"]["train_iterator"]["epoch"] == 2
    for updates in (5, UPDATES):
        train(parts, "--update-freq", 2, "--max-update", updates).ok()
    found = saved(tools, parts)
    assert_equal(found["model"], expected["model"])
    assert_equal(weights(found), weights(expected))

    again = (parts, "--update-freq", 2, "--max-update", 20)
    assert "expected 4 rows, actual 2 (rows are --batch-size" in train(*again, "--batch-size", 2).error


def test_carried_over_more_and_more_batches(tools, train):
    """Over 1 at first, then 2, 4 and 8; an interrupted training goes on exactly."""
    more = ("--fwp-carry-doubling", 2)
    alone = train("stream-alone", "--fwp-state", "reset", "--max-update", 4).ok().losses()
    losses = train("stream-more", *more, "--max-update", 7).ok().losses()
    # The second of two batches that continue each other is the fourth; both begin anew at the third.
    assert losses[:3] == alone[:3] and losses[3] != alone[3]
    for updates in (2, 5, 7):
        train("stream-more-parts", *more, "--max-update", updates).ok()
    expected, found = (saved(tools, folder) for folder in ("stream-more", "stream-more-parts"))
    assert_equal(found["model"], expected["model"])
    assert_equal(weights(found), weights(expected))
    assert "contradicts feature map favor" in train("unused", *more, "--fwp-feature-map", "favor").error
    assert "contradicts --fwp-state reset" in train("unused", *more, "--fwp-state", "reset").error
    assert "--fwp-carry-doubling -1: expected 0 or more" in train("unused", "--fwp-carry-doubling", -1).error
    stock = train("unused", model=["--arch", "transformer", *MODEL[2:8]])
    assert "actual architecture transformer, expected one of fwp_lm or transformer_xl_lm" in stock.error


# What a model loses, in bits a token, on the text as one batch of one row.
AT_ONCE = """
import torch
from types import SimpleNamespace
from fairseq import checkpoint_utils
from fairseq.utils import import_user_module
import_user_module(SimpleNamespace(user_dir={user_dir!r}))
(model,), _, task = checkpoint_utils.load_model_ensemble_and_task([{path!r}])
task.load_dataset("valid")
text = task.dataset("valid")
target = text.read(0, len(text))
source = torch.cat([torch.tensor([task.dictionary.eos()]), target[:-1]])
with torch.no_grad():
    out, _ = model.eval()(source[None])
print(torch.nn.functional.cross_entropy(out[0], target).item() / 0.6931471805599453)
"""


def words(line: str) -> list[str]:
    """Those after the program, without the pipe behind it."""
    return shlex.split(line.replace('"$(fwp path)"', str(ROOT / "fwp_fairseq")).partition(" | ")[0])[1:]


def test_the_documented_commands(tools, train):
    """docs/language_models.md, as it stands there but for the number of updates."""
    for name in ("train", "valid"):
        lines = (tools.folder / "shakespeare" / name).read_text(encoding="utf-8")
        (tools.folder / f"{name}.txt").write_text(lines.replace(" ", "").replace("▁", " "), encoding="utf-8")
    split, preprocess, train = commands(block("docs/language_models.md", "for part in train valid"))
    (train_xl,) = commands(block("docs/language_models.md", "fairseq-train data-lm"))
    subprocess.run(["bash", "-euc", split], cwd=tools.folder, check=True)
    assert (tools.folder / "train.chars").read_text().split() == (
        tools.folder / "shakespeare/train"
    ).read_text().split()
    tools.run("preprocess", *words(preprocess)).ok()
    tools.run("train", *words(train), "--max-update", 9).ok()
    tools.run("train", *words(train_xl), "--max-update", 2).ok()

    # Its log is piped; a program that is not forked sets logging up by itself.
    evaluate = block("docs/language_models.md", 'fairseq-eval-lm data-lm --user-dir "$(fwp path)" --task')
    carried = tools.shell(evaluate, fresh=True)
    assert "DEBUG" not in carried.out
    evaluate = command("docs/language_models.md", 'fairseq-eval-lm data-lm --user-dir "$(fwp path)" --path')
    window = tools.run("eval_lm", *words(evaluate)).ok()
    assert 0 < bits(carried) < 7 and 0 < bits(window) < 7
    found = tools.command("fwp", *words(command("docs/language_models.md", "fwp ppl")), "--json").ok()
    loss, counts = bits(carried), json.loads(found.out)
    assert counts["lines"] == 12 and counts["tokens"] > 4 * counts["words"]
    assert counts["word_perplexity"] == pytest.approx(2 ** (loss * counts["tokens"] / counts["words"]), rel=1e-6)

    echo, interactive = commands(block("docs/language_models.md", "echo "))
    subprocess.run(["bash", "-euc", echo], cwd=tools.folder, check=True)
    options = ("--cpu", "--max-len-b", 150, "--min-len", 150)
    (text,) = tools.run("interactive", *words(interactive), *options).ok().translations()
    assert text.startswith("T h e ") and len(text.split()) == 150  # the training had segments of 128

    page = (ROOT / "docs/language_models.md").read_text(encoding="utf-8")
    yaml = re.search(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
    (tools.folder / "streams.yaml").write_text(yaml.replace("fwp_fairseq,", f"{ROOT}/fwp_fairseq,"), encoding="utf-8")
    overrides = ("task.data=data-lm", "optimization.max_update=2", "checkpoint.save_dir=yaml", "hydra.run.dir=.")
    overrides += ("++model.decoder_layers=1", "dataset.batch_size=4", "dataset.num_workers=0")
    tools.run("hydra_train", "--config-dir", tools.folder, "--config-name", "streams", *overrides).ok()
    assert len(weights(saved(tools, "yaml"))) == 2  # W, and None for z, of one layer


def evaluate(tools, path: str, *arguments, task="fwp_language_modeling"):
    return tools.run(
        *("eval_lm", "chars", *tools.user_dir, "--task", task, "--path", path, "--cpu", "--gen-subset", "valid"),
        *("--no-progress-bar", *arguments),
    )


def bits(result) -> float:
    return float(re.search(r"Loss \(base 2\): ([\d.]+)", result.ok().out)[1])


def test_evaluation_reads_the_text_as_one(tools, whole):
    """Segments of any length lose what the model loses on the text in one piece, those that are reset what fairseq's
    own task says."""
    path = f"{whole[0]}/checkpoint_last.pt"
    score = AT_ONCE.format(user_dir=tools.user_dir[1], path=path)
    expected = float(tools.python(score).ok().out.splitlines()[-1])
    in_segments = evaluate(tools, path, "--tokens-per-sample", 7).ok()
    assert bits(in_segments) == pytest.approx(expected, abs=2e-4)
    reset = bits(evaluate(tools, path, "--tokens-per-sample", 4, "--fwp-state", "reset"))
    stock = bits(evaluate(tools, path, "--tokens-per-sample", 4, task="language_modeling"))
    assert reset == pytest.approx(stock, abs=2e-4) and abs(reset - expected) > 2e-3


# The paper's evaluation with a limited context: a window that moves by one token; all of the first one is scored, and
# the last token of each later one.
BY_WINDOWS = (
    AT_ONCE.partition("with torch")[0]
    + """
length, losses = 16, []
with torch.no_grad():
    for end in range(length, len(target) + 1):
        window = slice(end - length, end)
        out, _ = model.eval()(source[None, window])
        lost = torch.nn.functional.cross_entropy(out[0], target[window], reduction="none")
        losses += lost.tolist() if end == length else lost[-1:].tolist()
assert len(losses) == len(target)
print(sum(losses) / len(losses) / 0.6931471805599453)
"""
)


def test_a_sliding_window(tools, train):
    train("positions", "--fwp-normalizer", "auto", "--max-update", 6, model=MODEL).ok()
    path = "positions/checkpoint_last.pt"
    score = BY_WINDOWS.format(user_dir=tools.user_dir[1], path=path)
    expected = float(tools.python(score).ok().out.splitlines()[-1])
    window = ("--tokens-per-sample", 16, "--context-window", 15)
    for options in (("--batch-size", 1, "--num-workers", 0), ("--batch-size", 50, "--num-workers", 2)):
        assert bits(evaluate(tools, path, *window, *options, task="language_modeling")) == pytest.approx(
            expected, abs=2e-4
        )


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model[1])
def test_two_processes_are_one(tools, train, model):
    """Each process has half of the rows; a checkpoint of both in mid-epoch holds all of them."""
    one, two = (f"{number}-{model[1]}" for number in ("one", "two"))
    flags = ("--dropout", 0, "--adam-eps", 1e-2, "--disable-validation")
    train(one, *flags, "--max-update", 3, model=model).ok()
    data = ("chars", *tools.user_dir, *model, *TASK, *TRAINING, *flags, "--batch-size", 2)
    for result in by_hand(tools, 2, [*data, "--max-update", 3, "--save-dir", two]):
        result.ok()
    for go_on in (False, True):  # the same streams go on in another number of processes
        for folder in (one, two) if go_on else ():
            train(folder, *flags, "--max-update", 5, model=model).ok()
        expected, found = saved(tools, one), saved(tools, two)
        assert_equal(found["model"], expected["model"], 1e-5)
        assert_equal(weights(found), weights(expected), 1e-4)


def test_rows_must_be_given(tools, train):
    arguments = ("chars", *tools.user_dir, *MODEL, "--task", "fwp_language_modeling", *TRAINING, "--max-tokens", 100)
    assert "expected --batch-size N of at least 1, actual none" in tools.run("train", *arguments).error
