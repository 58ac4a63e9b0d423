"""Raw texts: from where they come, and that nothing else than the pinned text is taken."""

import gzip
import hashlib

import pytest

from scripts.common.errors import RecipeError
from scripts.data.sources import Source, provide

TEXT = "".join(f"line {n}\n" for n in range(5000)).encode()


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The folder of a corpus in FWP_DATA, and one that file:// URLs lead to."""
    local, served = tmp_path / "data/corpus", tmp_path / "served"
    local.mkdir(parents=True)
    served.mkdir()
    monkeypatch.setenv("FWP_DATA", str(tmp_path / "data"))
    return local, served


def source(served, name="text.txt"):
    return Source("corpus", f"file://{served}/{name}", hashlib.sha256(TEXT).hexdigest())


@pytest.mark.parametrize("where", [0, 1], ids=["FWP_DATA", "downloaded"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_a_text_is_checked_written_whole_and_kept(folders, tmp_path, where, packed):
    name, pack = ("text.txt.gz", gzip.compress) if packed else ("text.txt", bytes)
    file, target = folders[where] / name, tmp_path / "out/text.txt"
    wrong = [(b"another", "text.txt: expected .*, actual")]
    wrong += [(gzip.compress(TEXT)[:-9], "not a complete gzip file")] if packed else []
    for content, problem in wrong:
        file.write_bytes(content if problem.startswith("not") else pack(content))
        with pytest.raises(RecipeError, match=problem):
            provide(source(folders[1], name), target, print)
        assert list(target.parent.iterdir()) == []
    file.write_bytes(pack(TEXT))
    provide(source(folders[1], name), target, print)
    assert target.read_bytes() == TEXT
    file.unlink()
    provide(source(folders[1], name), target, print)  # from nowhere, as it is there
    target.write_bytes(TEXT[:-1])  # a damaged text is not kept
    with pytest.raises(RecipeError, match="could not be downloaded"):
        provide(source(folders[1], name), target, print)


def test_what_cannot_be_had_says_where_to_put_it(folders, tmp_path):
    with pytest.raises(RecipeError) as error:
        provide(source(folders[1], "none.txt"), tmp_path / "out/none.txt", print)
    for part in ("none.txt is not here", "No such file", str(folders[0]), "set FWP_DATA=DIR"):
        assert part in str(error.value)


def test_full_disk_leaves_nothing_half_written(folders, tmp_path, monkeypatch):
    def full(number):
        raise OSError(28, "No space left on device")

    (folders[0] / "text.txt").write_bytes(TEXT)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        provide(source(folders[1]), tmp_path / "out/text.txt", print)
    assert list((tmp_path / "out").iterdir()) == []
