"""What the task refuses, before anything is read."""

import pytest
from fairseq.data import data_utils
from fairseq.tasks.language_modeling import LanguageModelingTask
from omegaconf import OmegaConf

from fwp_fairseq.modules.carried_state import Segment
from fwp_fairseq.tasks.fwp_language_modeling import FwpLanguageModelingTask
from tests.models.helpers import WORDS
from tests.tasks.test_streams import TEXT


def task(**values):
    found = {"data": None, "tokens_per_sample": 8, "add_bos_token": False}
    found |= {"fwp_state": "carried", "fwp_carry_doubling": 0}
    made = FwpLanguageModelingTask.setup_task(OmegaConf.create(found | values))
    made.dictionary = made.output_dictionary = WORDS
    return made


def test_segments_have_tokens():
    with pytest.raises(ValueError, match="--tokens-per-sample 0: expected 1 or more"):
        task(tokens_per_sample=0)


def test_a_segment_begins_with_no_symbol_of_its_own():
    with pytest.raises(ValueError, match="add_bos_token: true contradicts fwp_language_modeling"):
        task(add_bos_token=True)


def test_batches_have_the_size_of_the_streams():
    with pytest.raises(ValueError, match=r"--max-tokens 15 \(.*-valid\): 2 rows .* of 8 tokens .* are more"):
        task().get_batch_iterator(TEXT, max_tokens=15, max_sentences=2)
    for once in (False, True):  # as for each part of data in parts
        own = task()
        assert len(own.get_batch_iterator(TEXT, max_tokens=16, max_sentences=2, disable_iterator_cache=once)) == 2
        assert len(own.dataset_to_epoch_iter) == 1 - once
    for size, shown in ((None, "none"), (0, 0), (-1, -1)):
        with pytest.raises(ValueError, match=f"--batch-size N of at least 1, actual {shown}"):
            task().get_batch_iterator(TEXT, max_sentences=size)
    with pytest.raises(ValueError, match="actual 0"):
        task().eval_lm_dataloader(TEXT, batch_size=0)


def test_data_in_parts(monkeypatch):
    own = task(dataset_impl=None)
    assert len(own.get_batch_iterator(TEXT, max_sentences=2)) != len(own.get_batch_iterator(TEXT, max_sentences=1))
    own.args.data, there = "a:b", {"a/train": TEXT.sentences}
    monkeypatch.setattr(data_utils, "load_indexed_dataset", lambda path, *_, **__: there.get(path))
    own.load_dataset("train")
    with pytest.raises(FileNotFoundError, match=r"Dataset not found: train \(b/train\)"):
        own.load_dataset("train", epoch=2)


@pytest.mark.parametrize("update, batches", [(1, 1), (2, 2), (5, 4), (10**6, 2**30)])
def test_states_are_carried_over_twice_as_many_batches(update, batches, monkeypatch):
    monkeypatch.setattr(LanguageModelingTask, "train_step", lambda *_: None)
    segment = Segment()
    task(fwp_carry_doubling=2).train_step({"net_input": {"segment": segment}}, None, None, None, update)
    assert segment.horizon == 8 * batches


def test_a_window_is_another_task():
    with pytest.raises(ValueError, match="--context-window 3 contradicts --task fwp_language_modeling"):
        task().eval_lm_dataloader(TEXT, context_window=3)
    with pytest.raises(ValueError, match="reads a text in segments, which no hypothesis can begin with"):
        task().inference_step(None, [], {"net_input": {"segment": None}})


def test_a_checkpoint_of_another_task_in_mid_epoch():
    iterator = task().get_batch_iterator(TEXT, max_sentences=2)
    with pytest.raises(ValueError, match="written in mid-epoch by a task without streams"):
        iterator.load_state_dict({"version": 2, "epoch": 1, "iterations_in_epoch": 1, "shuffle": False})
    iterator.load_state_dict({"version": 2, "epoch": 3, "iterations_in_epoch": 0, "shuffle": True})
    assert iterator.next_epoch_idx == 3


def test_segments_of_another_length_in_mid_epoch():
    """Also where a row has as many of them."""
    iterator = task().get_batch_iterator(TEXT, max_sentences=2)
    next(iterator.next_epoch_itr())
    with pytest.raises(ValueError, match="expected 8 tokens of a row, actual 10 "):
        task(tokens_per_sample=10).get_batch_iterator(TEXT, max_sentences=2).load_state_dict(iterator.state_dict())
    same = task().get_batch_iterator(TEXT, max_sentences=2)
    same.load_state_dict(iterator.state_dict())
