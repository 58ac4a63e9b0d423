"""Tests what the folder of a run keeps: configuration, finished steps, times and the last checkpoint."""

import json
import threading

import pytest

from scripts.common.folder import Folder, RecipeError


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "run", ("train", "generate", "bleu"))


def test_same_configuration_is_taken_again(folder):
    folder.claim({"--lr": "0.003"})
    folder.claim({"--lr": "0.003"})


def test_other_configuration_is_refused_and_the_folder_stays(folder):
    folder.claim({"--lr": "0.003", "--seed": "1"})
    with pytest.raises(RecipeError) as refusal:
        folder.claim({"--lr": "0.001", "--seed": "1", "--dropout": "0.2"})
    message = str(refusal.value)
    assert "--lr: expected 0.001, actual 0.003" in message
    assert "--dropout: expected 0.2, actual nothing" in message
    assert "--seed" not in message and str(folder.path) in message and "--name" in message
    assert json.loads((folder.path / "config.json").read_text()) == {"--lr": "0.003", "--seed": "1"}


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


def test_a_step_that_is_done_again_forgets_the_later_ones_only(folder):
    for step in folder.steps:
        folder.run(step, step, [], [], dict)
    folder.run("generate", "again", ["other"], [], dict)
    assert [folder.result(step, [], []) for step in folder.steps] == [{}, None, None]


def test_a_step_that_failed_or_was_stopped_is_not_finished(folder):
    def work():
        raise RecipeError("pretended")

    with pytest.raises(RecipeError):
        folder.run("train", "train", [], [], work)
    assert folder.result("train", [], []) is None


def test_folder_in_use_is_refused(folder):
    with folder.locked(), pytest.raises(RecipeError, match="in use"), folder.locked():
        pass
    with folder.locked():
        pass


@pytest.mark.parametrize("text", ["{", "[]"])
def test_damaged_marker_is_named(folder, text):
    (folder.path / "done-train.json").write_text(text)
    with pytest.raises(RecipeError, match=r"done-train\.json is not a JSON object; remove"):
        folder.result("train", [], [])


@pytest.mark.parametrize("name", ["a:b", "a,b", "a${b}", "${"])
def test_folder_that_fairseq_would_not_find_is_refused(tmp_path, name):
    with pytest.raises(RecipeError, match="expected a path without"):
        Folder(tmp_path / name / "data", ())
    assert list(tmp_path.iterdir()) == []


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
