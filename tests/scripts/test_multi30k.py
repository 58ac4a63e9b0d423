"""Tests the preparation of Multi30k on made-up texts, without network: checksums, sources, and files after an error."""

import gzip
import hashlib
import urllib.error

import pytest

from scripts.data import multi30k, sources

TEXTS = {"train.en": b"one dog\ntwo dogs\n", "train.de": b"ein Hund\nzwei Hunde\n"}


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Makes a folder for FWP_DATA with the two texts and pins their checksums. Any download fails the test."""
    folder = tmp_path / "data" / "multi30k"
    folder.mkdir(parents=True)
    for name, text in TEXTS.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(text))
    monkeypatch.setattr(multi30k, "SHA256", {name: hashlib.sha256(text).hexdigest() for name, text in TEXTS.items()})
    monkeypatch.setenv("FWP_DATA", str(folder.parent))
    monkeypatch.delenv("FWP_MULTI30K_URL", raising=False)
    monkeypatch.setattr(sources.time, "sleep", lambda seconds: None)

    def no_network(url, timeout):
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(multi30k.urllib.request, "urlopen", no_network)
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_texts_come_from_the_folder_in_fwp_data(corpus, tmp_path):
    assert sorted(multi30k.provide(tmp_path / "out")) == sorted(TEXTS)
    assert contents(tmp_path / "out") == TEXTS


def test_finished_texts_are_kept_and_damaged_ones_replaced(corpus, tmp_path):
    multi30k.provide(tmp_path)
    assert multi30k.provide(tmp_path) == []
    (tmp_path / "train.de").write_bytes(b"ein Hund\nzwei")
    assert multi30k.provide(tmp_path) == ["train.de"]
    assert (tmp_path / "train.de").read_bytes() == TEXTS["train.de"]


def test_wrong_checksum_is_refused_with_both_values_and_nothing_written(corpus, tmp_path):
    (corpus / "train.en.gz").write_bytes(gzip.compress(b"another text\n"))
    actual, expected = hashlib.sha256(b"another text\n").hexdigest(), multi30k.SHA256["train.en"]
    with pytest.raises(multi30k.DataError, match=rf"train\.en\.gz.*expected {expected}, actual {actual}"):
        multi30k.provide(tmp_path / "out")
    assert contents(tmp_path / "out") == {}


def test_truncated_gzip_is_refused_with_nothing_written(corpus, tmp_path):
    packed = (corpus / "train.en.gz").read_bytes()
    for damaged in (packed[:-9], packed[: len(packed) // 2], b"", b"<html>"):
        (corpus / "train.en.gz").write_bytes(damaged)
        with pytest.raises(multi30k.DataError, match=r"train\.en\.gz"):
            multi30k.provide(tmp_path / "out")
        assert contents(tmp_path / "out") == {}


def test_full_disk_leaves_nothing_half_written(corpus, tmp_path, monkeypatch):
    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        multi30k.provide(tmp_path / "out")
    assert contents(tmp_path / "out") == {}


def test_offline_error_says_what_to_do_by_hand(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FWP_DATA", str(tmp_path / "elsewhere"))
    assert multi30k.main(["--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    for part in (
        *("train.en.gz", "train.de.gz", multi30k.URL, str(tmp_path / "elsewhere" / "multi30k"), "set FWP_DATA=DIR"),
        f"FWP_DATA={tmp_path / 'elsewhere'}",
        "no network in tests",
    ):
        assert part in message
    assert contents(tmp_path / "out") == {}


def test_download_retries_and_verifies(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("FWP_DATA", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("FWP_MULTI30K_URL", "https://mirror.invalid/raw")
    asked = []

    class Response:
        def __init__(self, content):
            self.read = lambda: content

        def __enter__(self):
            return self

        def __exit__(self, *problem):
            return None

    def sometimes(url, timeout):
        asked.append(url)
        if len(asked) == 1:
            raise TimeoutError("timed out")
        return Response(gzip.compress(TEXTS[url.rpartition("/")[2].removesuffix(".gz")]))

    monkeypatch.setattr(multi30k.urllib.request, "urlopen", sometimes)
    multi30k.provide(tmp_path / "out")
    assert contents(tmp_path / "out") == TEXTS
    mirror = "https://mirror.invalid/raw"
    assert asked == [f"{mirror}/train.en.gz", f"{mirror}/train.en.gz", f"{mirror}/train.de.gz"]


def test_missing_file_on_the_server_is_not_asked_for_again(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("FWP_DATA", str(tmp_path / "elsewhere"))
    asked = []

    def gone(url, timeout):
        asked.append(url)
        raise urllib.error.HTTPError(url, 404, "Not Found", None, None)

    monkeypatch.setattr(multi30k.urllib.request, "urlopen", gone)
    with pytest.raises(multi30k.DataError, match="404"):
        multi30k.provide(tmp_path / "out")
    assert len(asked) == 1


def test_default_folder_is_beside_the_repository(monkeypatch):
    monkeypatch.delenv("FWP_DATA", raising=False)
    assert sources.folder("multi30k") == sources.ROOT / "../shared/data/multi30k"


def test_pinned_names_are_the_splits_in_both_languages():
    assert set(multi30k.SHA256) == {f"{s}.{lang}" for s in multi30k.SPLITS for lang in multi30k.LANGUAGES}
    assert all(len(checksum) == 64 for checksum in multi30k.SHA256.values())
