"""Loading a checkpoint runs no code from it, and a checkpoint keeps more than parameters."""

import argparse
import shutil

import pytest
import torch
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from tests.models.helpers import dictionary

COMMAND = "__import__('os').system('touch RAN')"
MODELS = {
    "fwp": lambda options: options,
    "stock-transformer": lambda options: argparse.Namespace(
        **options | {"_name": "transformer", "arch": "transformer"}
    ),
    "stock-lm": lambda options: options | {"_name": "transformer_lm", "character_embeddings": False},
}


def resaved(tools, path: str, change) -> str:
    """Changes a copy of the checkpoint by `change` and returns its path."""
    state = tools.load("favor/checkpoint_last.pt")
    change(state)
    torch.save(state, tools.folder / path)
    return path


@pytest.mark.parametrize("model", MODELS)
def test_options_of_a_checkpoint_run_no_code(tools, favor, model):
    def change(state):
        options = state["cfg"]["model"] | {"adaptive_softmax_cutoff": COMMAND}
        state["cfg"]["model"] = MODELS[model](options)

    path = resaved(tools, f"command.{model}.pt", change)
    if model == "stock-lm":
        (tools.folder / "words").mkdir()
        (tools.folder / "words/dict.txt").write_bytes((tools.folder / "bin/dict.de.txt").read_bytes())
        found = tools.run(
            *("eval_lm", "words", *tools.user_dir, "--task", "language_modeling", "--cpu", "--path", path),
            *("--gen-subset", "valid", "--batch-size", 8),
        )
    else:
        found = tools.generate(path)
    assert COMMAND in found.error and "expected numbers" in found.error
    assert not (tools.folder / "RAN").exists()


@pytest.fixture(scope="module")
def shuffled(tools):
    """Copies the data and exchanges two entries of the dictionary, so that its size stays the same."""
    folder = tools.folder / "shuffled"
    shutil.copytree(tools.folder / "bin", folder)
    for path in folder.glob("dict.*"):
        lines = path.read_text("utf-8").splitlines(keepends=True)
        lines[7], lines[8] = lines[8], lines[7]
        path.write_text("".join(lines), encoding="utf-8")
    return folder.name


def test_decoding_with_another_dictionary_is_refused(tools, favor, shuffled):
    found = tools.generate("favor/checkpoint_last.pt", data=shuffled)
    for words in ("another source dictionary", "expected", "actual", "entries, sha256"):
        assert words in found.error

    path = resaved(
        tools, "forgetful.pt", lambda state: state["task_state"].clear()
    )  # as in checkpoints of older versions
    assert len(tools.generate(path, data=shuffled).ok().translations()) == 40


def test_training_on_with_another_dictionary_is_refused(tools, favor, shuffled):
    flags = [*tools.attention["favor"], "--disable-validation", "--no-save", "--max-update"]
    last = tools.folder / "favor/checkpoint_last.pt"
    found = tools.train("other", *flags, 100, "--restore-file", last, data=shuffled)
    for words in (str(last), "another source dictionary", "--finetune-from-model"):
        assert words in found.error
    found = tools.train("other", *flags, 1, "--finetune-from-model", last, data=shuffled).ok()
    larger = shutil.copytree(tools.folder / "bin", tools.folder / "larger")
    for path in larger.glob("dict.*"):
        path.write_text(path.read_text("utf-8") + "".join(f"another{n} 1\n" for n in range(8)), encoding="utf-8")
    error = tools.train("other", *flags, 100, "--restore-file", last, data="larger").error
    assert "--finetune-from-model" not in error and "fairseq-preprocess --srcdict" in error
    assert "another source dictionary" in found.out and len(found.losses()) == 1


def test_training_on_with_a_damaged_optimizer_is_refused(tools, favor):
    flags = [*tools.attention["favor"], "--disable-validation", "--no-save", "--max-update", 100]
    path = resaved(tools, "damaged.pt", lambda s: s["last_optimizer_state"]["state"][0].update(exp_avg=None))
    error = tools.train("damaged", *flags, "--restore-file", path).error
    assert "damaged.pt does not fit the training: exp_avg of its optimizer's state is NoneType, expected shape" in error


def test_words_that_are_added_while_the_model_is_built_are_no_other_dictionary(monkeypatch):
    """As online_backtranslation and --merge-src-tgt-embed do, when the checkpoint has been checked already."""
    monkeypatch.setattr("fairseq.models.build_model", lambda cfg, task, *_: task.src_dict.add_symbol("__en__"))
    trained, opened = (TranslationTask(TranslationConfig(), dictionary(), dictionary()) for _ in range(2))
    trained.build_model(None)
    opened.load_state_dict(trained.state_dict())
