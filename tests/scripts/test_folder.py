"""Tests what the folder of a run keeps: its configuration and finished steps."""

import json
import threading

import pytest

from scripts.common.errors import RecipeError
from scripts.common.folder import Folder


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "run", ("train", "generate", "bleu"))


def test_other_configuration_is_refused_and_the_folder_stays(folder):
    folder.claim({"--lr": "0.003", "--seed": "1"})
    with pytest.raises(RecipeError) as refusal:
        folder.claim({"--lr": "0.001", "--seed": "1", "--dropout": "0.2"})
    message = str(refusal.value)
    assert "--lr: expected 0.001, actual 0.003" in message
    assert "--dropout: expected 0.2, actual nothing" in message
    assert "--seed" not in message and str(folder.path) in message and "--out" in message
    assert json.loads((folder.path / "config.json").read_text()) == {"--lr": "0.003", "--seed": "1"}


def test_what_is_not_known_is_not_compared(folder):
    """The documents of a finished run may have been deleted."""
    folder.claim({"--lr": "0.003", "corpus": "6c74"})
    folder.claim({"--lr": "0.003", "corpus": None})
    with pytest.raises(RecipeError, match="corpus: expected 6c75, actual 6c74"):
        folder.claim({"--lr": "0.003", "corpus": "6c75"})
    (folder.path / "config.json").write_text('{"--lr": "0.003", "corpus": null}')
    folder.claim({"--lr": "0.003", "corpus": "6c75"})


def test_a_finished_step_is_kept_until_its_inputs_or_outputs_change(folder):
    done, output = [], folder.path / "model"

    def run(inputs):
        def work():
            output.touch()
            done.append(inputs)
            return {"seconds": 3}

        assert folder.run("train", "train", inputs, [output], work) == {"seconds": 3}

    for inputs in (["a"], ["a"], ["b"], ["b"]):
        run(inputs)
    output.unlink()
    run(["b"])
    assert done == [["a"], ["b"], ["b"]]


def test_a_step_that_did_not_end_is_done_again(folder):
    """What was there before the step began is no result of it, nor is what it has written so far."""

    def killed():
        (folder.path / "model").touch()
        raise KeyboardInterrupt

    folder.run("train", "train", ["a"], [folder.path / "model"], dict)
    with pytest.raises(KeyboardInterrupt):
        folder.run("train", "train", ["b"], [folder.path / "model"], killed)
    assert folder.result("train", ["a"], [folder.path / "model"]) is None
    assert folder.result("train", ["b"], [folder.path / "model"]) is None


def test_a_step_that_is_done_again_forgets_the_later_ones_only(folder):
    for step in folder.steps:
        folder.run(step, step, [], [], dict)
    folder.run("generate", "again", ["other"], [], dict)
    assert [folder.result(step, [], []) for step in folder.steps] == [{}, None, None]


def test_folder_in_use_is_refused(folder):
    with folder.locked(), pytest.raises(RecipeError, match="in use"), folder.locked():
        pass
    with folder.locked():
        pass


def test_a_command_can_wait_for_the_folder(folder, capsys):
    def work():
        with Folder(folder.path, ()).locked(wait=True):
            order.append("second")

    order, second = [], threading.Thread(target=work)
    with folder.locked():
        second.start()
        second.join(0.3)
        assert second.is_alive()
        order.append("first")
    second.join(10)
    assert order == ["first", "second"]
    assert capsys.readouterr().out == f"waiting for another command that is using {folder.path}\n"
