"""Archives of models are unpacked into a folder of their own, or refused."""

import io
import os
import shutil
import tarfile
from types import SimpleNamespace

import pytest
from fairseq import file_utils

import fwp_fairseq.mends  # noqa: F401


def archive(path, *members, mode="w:gz"):
    """Writes members: names of files, or tuples of name, kind and, for links, what they link to."""
    with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as file:
        for member in members:
            name, kind, link = (member, tarfile.REGTYPE, "") if isinstance(member, str) else (*member, "")[:3]
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, link, 0o755
            info.size = 1 if kind == tarfile.REGTYPE else 0
            # A time that no file system has, and a name that only an extended header can have.
            info.pax_headers = {"mtime": "inf"} | ({"path": name} if "\0" in name else {})
            file.addfile(info, io.BytesIO(b"x"))
    return path


def tree(folder) -> dict:
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def home(tmp_path):
    """A user's folder, beside that of the archives, which no archive may change."""
    (tmp_path / "home/papers").mkdir(parents=True)
    (tmp_path / "home/papers/thesis.tex").write_text("years of work")
    (tmp_path / "archives").mkdir()
    return tmp_path / "home"


SYM, HARD, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
HOSTILE = {
    "absolute": ["{home}/papers"],
    "absolute-folder": [("{home}/papers", FOLDER)],
    "absolute-several": ["{home}/papers/a", "{home}/papers/b"],
    "absolute-beside-others": ["model/checkpoint.pt", "{home}/papers/thesis.tex"],
    "slashes": ["//{home}/papers"],
    "up": ["../home/papers/thesis.tex"],
    "up-alone": [("..", FOLDER)],
    "up-inside": ["model/../../home/papers/thesis.tex"],
    "up-and-back": ["../archives/model.tar.gz"],
    "link": [("model/link", SYM, "{home}/papers"), "model/link/thesis.tex"],
    "link-up": [("model", SYM, "../../home"), "model/papers/thesis.tex"],
    "link-alone": [("model", SYM, "{home}/papers")],
    "link-chain": [("a", FOLDER), ("a/b", SYM, "."), ("a/b/c", SYM, "../.."), "a/b/c/x"],
    "hard-link": [("model/thesis", HARD, "{home}/papers/thesis.tex"), "model/thesis"],
    "hard-link-up": [("model/thesis", HARD, "../../home/papers/thesis.tex")],
    "device": [("model/null", tarfile.CHRTYPE)],
    "fifo": [("model/fifo", tarfile.FIFOTYPE)],
    "file-as-folder": ["model", "model/checkpoint.pt"],
    "hard-link-to-nothing": ["model/checkpoint.pt", ("model/copy.pt", HARD, "model/absent.pt")],
    "nul-in-a-name": ["model/check\0point.pt"],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_leaves_the_folder_is_refused(home, kind):
    def filled(part):
        if isinstance(part, tuple):
            return tuple(map(filled, part))
        return part.format(home=home) if isinstance(part, str) else part

    path = archive(home.parent / "archives/model.tar.gz", *map(filled, HOSTILE[kind]))
    before = tree(home.parent)
    with pytest.raises(ValueError, match=r"archive \S*model\.tar\.gz is refused: ."):
        file_utils.load_archive_file(str(path))
    assert tree(home.parent) == before


@pytest.mark.parametrize("cut", [0, 20, 100])
def test_a_damaged_archive_is_named_and_left(home, cut):
    path = archive(home.parent / "archives/model.tar.gz", *(f"model/{number}" for number in range(50)))
    path.write_bytes(path.read_bytes()[:cut])
    before = tree(home.parent)
    with pytest.raises(ValueError, match=r"archive \S*model\.tar\.gz is refused: ."):
        file_utils.load_archive_file(str(path))
    assert tree(home.parent) == before


@pytest.mark.parametrize(
    "members, expected",
    [
        (["model/checkpoint.pt", "model/dict.de.txt"], ["checkpoint.pt", "dict.de.txt"]),
        ([("model", FOLDER), "model/checkpoint.pt", ("model/copy.pt", HARD, "model/checkpoint.pt")], None),
        (["checkpoint.pt"], ["checkpoint.pt"]),
        (["a/b/checkpoint.pt"], ["checkpoint.pt"]),
        (["model.pt", "models/dict.de.txt"], ["model.pt", "models"]),  # without a common folder
        ([(".", FOLDER), "./checkpoint.pt", "./dict.de.txt"], ["checkpoint.pt", "dict.de.txt"]),
    ],
)
@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_what_stays_inside_is_unpacked(home, members, expected, suffix):
    path = archive(home.parent / f"archives/model.tar.{suffix}", *members, mode=f"w:{suffix}")
    assert file_utils.load_archive_file(str(path)) == str(path)
    assert sorted(os.listdir(path)) == (expected or ["checkpoint.pt", "copy.pt"])
    assert os.listdir(path.parent) == [path.name], "nothing else remains"
    assert file_utils.load_archive_file(str(path)) == str(path)


def test_pythons_without_filters_unpack_too(home, monkeypatch):
    """Python 3.11.2 of Debian 12 has neither filters nor their exceptions."""
    extractall = tarfile.TarFile.extractall
    for name in ("data_filter", "AbsolutePathError", "OutsideDestinationError", "LinkOutsideDestinationError"):
        monkeypatch.delattr(tarfile, name)
    monkeypatch.setattr(tarfile.TarFile, "extractall", lambda self, path, members: extractall(self, path, members))
    path = archive(home.parent / "archives/model.tar.gz", "model/checkpoint.pt")
    assert file_utils.load_archive_file(str(path)) == str(path) and os.listdir(path) == ["checkpoint.pt"]
    path = archive(home.parent / "archives/other.tar.gz", "../home/papers/thesis.tex")
    with pytest.raises(ValueError, match=r"archive \S*other\.tar\.gz is refused: \.\./home"):
        file_utils.load_archive_file(str(path))


def test_archives_larger_than_the_disk_are_refused_before_they_are_unpacked(home, monkeypatch):
    path = archive(home.parent / "archives/model.tar.gz", "model/a", "model/b", "model/c")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2))
    before = tree(home.parent)
    with pytest.raises(ValueError, match=r"refused: its files are larger than the free space .*, first model/c"):
        file_utils.load_archive_file(str(path))
    assert tree(home.parent) == before


def test_what_is_no_file_is_said_by_fairseq(tmp_path):
    assert file_utils.load_archive_file(str(tmp_path / "absent.tar.gz")) is None
