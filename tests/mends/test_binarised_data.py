"""Damaged binarised data is named when it is opened."""

import re
import struct

import pytest
import torch
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary, data_utils, indexed_dataset

import fwp_fairseq.mends  # noqa: F401


@pytest.fixture
def dictionary():
    found = Dictionary()
    for word in "abcdef":
        found.add_symbol(word)
    return found


@pytest.fixture
def data(tmp_path, dictionary):
    """Two sentences of 3 and 2 numbers, of 2 bytes each; a file of 10 bytes and an index of 26 + 2 * 12."""
    path = str(tmp_path / "train.de")
    builder = indexed_dataset.make_builder(f"{path}.bin", impl="mmap", vocab_size=len(dictionary))
    for sentence in ([4, 5, 2], [9, 2]):
        builder.add_item(torch.IntTensor(sentence))
    builder.finalize(f"{path}.idx")
    return tmp_path / "train.de"


def opened(data, dictionary, impl=None):
    return data_utils.load_indexed_dataset(str(data), dictionary, impl)


def test_whole_data_is_opened(data, dictionary):
    assert [sentence.tolist() for sentence in opened(data, dictionary)] == [[4, 5, 2], [9, 2]]
    assert opened(data.with_name("nothing"), dictionary) is None


@pytest.mark.parametrize("full", ["bin", "idx"])
def test_a_full_disk_is_an_error_with_a_name(tmp_path, dictionary, full):
    for name in ("dict.txt", f"train.{full}"):
        (tmp_path / name).symlink_to("/dev/full")
    (tmp_path / "text").write_text("a b c\n")
    with pytest.raises(OSError, match=r"No space left on device: '.*dict.txt'"):
        dictionary.save(str(tmp_path / "dict.txt"))
    words = str(tmp_path / "text"), "mmap", VocabularyDatasetBinarizer(dictionary), str(tmp_path / "train")
    with pytest.raises(OSError, match=r"No space left on device: '.*train'"):
        FileBinarizer.multiprocess_dataset(*words, vocab_size=len(dictionary))


def _replace(suffix, change):
    def damage(data):
        path = data.with_suffix(suffix)
        path.write_bytes(change(path.read_bytes()))

    return damage


@pytest.mark.parametrize("impl", [None, "mmap"])
@pytest.mark.parametrize(
    "damage, message",
    [
        (_replace(".de.bin", lambda b: b[:-1]), ".bin is damaged: expected 10 bytes, actual 9; binarise"),
        (_replace(".de.bin", lambda b: b + b"x"), ".bin is damaged: expected 10 bytes, actual 11"),
        (_replace(".de.idx", lambda b: b[:-1]), ".idx is damaged: expected 50 bytes, actual 49"),
        (_replace(".de.idx", lambda b: b[:20]), ".idx is truncated or not an index"),
        (_replace(".de.idx", lambda b: b"x" * 50), ".idx is truncated or not an index"),
        (_replace(".de.idx", lambda b: b[:18] + struct.pack("<Q", 2**61) + b[26:]), ".idx is damaged: expected 276701"),
        # The sizes 3 and 2 at byte 26, the positions 0 and 6 at byte 34.
        (_replace(".de.idx", lambda b: b[:26] + struct.pack("<i", -5) + b[30:]), ".idx is damaged: expected sentences"),
        (_replace(".de.idx", lambda b: b[:34] + struct.pack("<q", 2) + b[42:]), ".idx is damaged: expected sentences"),
        (_replace(".de.bin", lambda b: b[:2] + b"\x0a\x00" + b[4:]), "from 0 to 9, actual 2 to 10"),
        (lambda data: data.with_suffix(".de.bin").unlink(), ".bin is missing"),
        (lambda data: data.with_suffix(".de.idx").unlink(), ".idx is missing"),
    ],
)
def test_damage_is_named(data, dictionary, damage, message, impl):
    damage(data)
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)) as error:
        opened(data, dictionary, impl)
    assert str(error.value).startswith(str(data))


def test_data_of_a_larger_dictionary(data):
    with pytest.raises(ValueError, match="of another dictionary: expected numbers from 0 to 3, actual 2 to 9"):
        opened(data, Dictionary())
    assert len(opened(data, None)) == 2, "alignments have no dictionary"


def test_data_without_sentences(tmp_path, dictionary):
    builder = indexed_dataset.make_builder(f"{tmp_path}/empty.bin", impl="mmap", vocab_size=len(dictionary))
    builder.finalize(f"{tmp_path}/empty.idx")
    with pytest.raises(ValueError, match=r"empty\.bin holds no sentence"):
        opened(tmp_path / "empty", dictionary)


@pytest.mark.parametrize("impl", ["mmap", "cached", "lazy"])
def test_no_byte_of_the_header_is_changed_unnoticed(tmp_path, dictionary, impl):
    """A type of the same bytes, signed or not, reads the same numbers."""
    path, expected = tmp_path / "train.de", [[4, 5, 2], [9, 2]]
    builder = indexed_dataset.make_builder(f"{path}.bin", impl=impl, vocab_size=len(dictionary))
    for sentence in expected:
        builder.add_item(torch.IntTensor(sentence))
    builder.finalize(f"{path}.idx")
    whole = (tmp_path / "train.de.idx").read_bytes()

    def read():
        found = opened(path, dictionary, impl)
        if impl == "cached":
            found.prefetch(range(len(found)))
        return [found[number].tolist() for number in range(len(found))]

    assert read() == expected
    for at in range(26 if impl == "mmap" else 48):
        for value in {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 127, 128, 255, whole[at] ^ 1} - {whole[at]}:
            (tmp_path / "train.de.idx").write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                assert read() == expected
            except (ValueError, FileNotFoundError) as error:
                assert str(error).startswith(f"{path}."), f"byte {at}, value {value}: {error}"
