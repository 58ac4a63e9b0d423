"""Tests the preparation of Multi30k on made-up texts, without network."""

import gzip
import hashlib

import pytest

from scripts.data import multi30k, sources

TEXTS = {"train.en": b"one dog\ntwo dogs\n", "train.de": b"ein Hund\nzwei Hunde\n"}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Makes a folder for FWP_DATA with the two texts and pins their checksums."""
    folder = tmp_path / "data" / "multi30k"
    folder.mkdir(parents=True)
    for name, text in TEXTS.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(text))
    monkeypatch.setattr(multi30k, "SHA256", {name: hashlib.sha256(text).hexdigest() for name, text in TEXTS.items()})
    monkeypatch.setenv("FWP_DATA", str(folder.parent))
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_finished_texts_are_kept_and_damaged_ones_replaced(corpus, tmp_path):
    out = tmp_path / "out"
    assert sorted(multi30k.provide(out)) == sorted(TEXTS) and contents(out) == TEXTS
    assert multi30k.provide(out) == []
    (out / "train.de").write_bytes(b"ein Hund\nzwei")
    assert multi30k.provide(out) == ["train.de"] and contents(out) == TEXTS


def test_wrong_checksum_is_refused_with_both_values_and_nothing_written(corpus, tmp_path):
    (corpus / "train.en.gz").write_bytes(gzip.compress(b"another text\n"))
    actual, expected = hashlib.sha256(b"another text\n").hexdigest(), multi30k.SHA256["train.en"]
    with pytest.raises(multi30k.DataError, match=rf"train\.en\.gz.*expected {expected}, actual {actual}"):
        multi30k.provide(tmp_path / "out")
    assert contents(tmp_path / "out") == {}


def test_full_disk_leaves_nothing_half_written(corpus, tmp_path, monkeypatch):
    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        multi30k.provide(tmp_path / "out")
    assert contents(tmp_path / "out") == {}


def test_default_folder_is_beside_the_repository(monkeypatch):
    monkeypatch.delenv("FWP_DATA", raising=False)
    assert sources.folder("multi30k") == sources.ROOT / "../shared/data/multi30k"


def test_pinned_names_are_the_splits_in_both_languages():
    assert set(multi30k.SHA256) == {f"{s}.{lang}" for s in multi30k.SPLITS for lang in multi30k.LANGUAGES}
    assert all(len(checksum) == 64 for checksum in multi30k.SHA256.values())
