"""Checks binarised data when it is opened, and names the file that is missing, damaged or of another dictionary.

fairseq notices most damage only when it reads the damaged sentence, and some of it never. A full disk that stops
fairseq-preprocess is an error without the name of the file.
"""

import os
import struct

import numpy as np
from fairseq.binarizer import FileBinarizer
from fairseq.data import Dictionary, indexed_dataset

from ..files import named
from . import around

_AGAIN = "binarise the data again (fairseq-preprocess)"
_HEADER = struct.Struct("<9sQBQ")  # magic, version, code of the type, number of sentences
_OLD_HEADER = struct.Struct("<8s5Q")  # magic, version, code and bytes of the type, number of sentences and of sizes
_VERSION = 1  # of both
_MAGIC = indexed_dataset.MMapIndexedDataset.Index._HDR_MAGIC
_OLD_MAGIC = indexed_dataset.IndexedDataset._HDR_MAGIC


def _type_size(index: str, version: int, code: int) -> int:
    """Returns the bytes of a number; raises ValueError for an unknown version or a type that is not an integer."""
    if version != _VERSION:
        raise ValueError(f"{index} is damaged: expected version {_VERSION}, actual {version}; {_AGAIN}")
    kind = np.dtype(indexed_dataset._code_to_dtype.get(code, np.void))
    if not np.issubdtype(kind, np.integer):
        raise ValueError(f"{index} is damaged: expected a type of whole numbers, actual code {code}; {_AGAIN}")
    return kind.itemsize


def _check_old_header(index: str, head: bytes) -> None:
    """Raises ValueError unless an index of the format before mmap is as long as its header says."""
    if len(head) < _OLD_HEADER.size:
        raise ValueError(f"{index} is truncated or not an index of binarised data; {_AGAIN}")
    _, version, code, size, count, dimensions = _OLD_HEADER.unpack(head)
    if _type_size(index, version, code) != size:
        raise ValueError(f"{index} is damaged: numbers of type {code} do not have {size} bytes; {_AGAIN}")
    expected, actual = _OLD_HEADER.size + 8 * (2 * (count + 1) + dimensions), os.path.getsize(index)
    if expected != actual:
        raise ValueError(f"{index} is damaged: expected {expected} bytes, actual {actual}; {_AGAIN}")


def _check_files(path: str, mmap: bool) -> None:
    """Raises FileNotFoundError or ValueError unless index and data are both there and as long as the index says."""
    index, data = indexed_dataset.index_file_path(path), indexed_dataset.data_file_path(path)
    there = {file: os.path.exists(file) for file in (index, data)}
    if not any(there.values()):
        return
    for file in there:
        if not there[file]:
            raise FileNotFoundError(f"{file} is missing, but the other file of the two is there; {_AGAIN}")
    with open(index, "rb") as file:
        head = file.read(_HEADER.size)
        if not mmap and head.startswith(_OLD_MAGIC):
            _check_old_header(index, head + file.read(_OLD_HEADER.size - len(head)))
            return
        if len(head) < _HEADER.size or not head.startswith(_MAGIC):
            raise ValueError(f"{index} is truncated or not an index of binarised data; {_AGAIN}")
        _, version, code, count = _HEADER.unpack(head)
        type_size = _type_size(index, version, code)
        expected, actual = _HEADER.size + 12 * count, os.path.getsize(index)
        if expected == actual and count:
            sizes = np.frombuffer(file.read(4 * count), "<i4").astype(np.int64)
            begins = np.frombuffer(file.read(8 * count), "<i8")
    if expected != actual:
        raise ValueError(f"{index} is damaged: expected {expected} bytes, actual {actual}; {_AGAIN}")
    ends = np.cumsum(sizes) * type_size if count else np.zeros(1, np.int64)
    if count and (sizes.min() < 0 or (begins != ends - sizes * type_size).any()):
        raise ValueError(f"{index} is damaged: expected sentences one after the other; {_AGAIN}")
    expected, actual = int(ends[-1]), os.path.getsize(data)
    if expected != actual:
        raise ValueError(f"{data} is damaged: expected {expected} bytes, actual {actual}; {_AGAIN}")
    if not count:
        raise ValueError(f"{data} holds no sentence; {_AGAIN}, from a text that has lines")


def _check_numbers(path: str, dataset, dictionary) -> None:
    """Raises ValueError for a number that is no entry of the dictionary; cheap, because the file was just read."""
    numbers = np.frombuffer(dataset._bin_buffer, dtype=dataset._index.dtype)
    if not numbers.size:
        return
    least, largest = int(numbers.min()), int(numbers.max())
    if least < 0 or largest >= len(dictionary):
        raise ValueError(
            f"{indexed_dataset.data_file_path(path)} is damaged or of another dictionary: expected numbers from 0 to "
            f"{len(dictionary) - 1}, actual {least} to {largest}; {_AGAIN}"
        )


@around(indexed_dataset, "make_dataset")
def check_and_make(make, path, impl, fix_lua_indexing=False, dictionary=None):
    if impl in ("mmap", "cached", "lazy"):
        _check_files(path, impl == "mmap")
    dataset = make(path, impl, fix_lua_indexing, dictionary)
    if dictionary is not None and isinstance(dataset, indexed_dataset.MMapIndexedDataset):
        _check_numbers(path, dataset, dictionary)
    return dataset


@around(Dictionary, "save")
def save_named(save, self, file):
    with named(getattr(file, "name", file)):
        save(self, file)


@around(FileBinarizer, "multiprocess_dataset")
def binarise_named(binarise, input_file, dataset_impl, binarizer, output_prefix, *more, **keywords):
    with named(output_prefix):
        return binarise(input_file, dataset_impl, binarizer, output_prefix, *more, **keywords)
