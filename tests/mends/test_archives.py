"""Archives of models are unpacked inside their folder, or refused."""

import io
import tarfile

import pytest
from fairseq import file_utils

import fwp_fairseq.mends  # noqa: F401


def archive(path, name, link=None):
    with tarfile.open(path, "w:gz") as file:
        for member in ("model/checkpoint.pt", name):
            info = tarfile.TarInfo(member)
            info.size = 1
            if link is not None and member == name:
                info.type, info.linkname, info.size = tarfile.SYMTYPE, link, 0
            file.addfile(info, io.BytesIO(b"x"))
    return path


@pytest.mark.parametrize("name, link", [("model/../../evil", None), ("model/link", "/etc/passwd"), ("../evil", None)])
def test_what_leaves_the_folder_is_refused(tmp_path, name, link):
    path = archive(tmp_path / "model.tar.gz", name, link)
    content = path.read_bytes()
    with pytest.raises(ValueError, match=r"model\.tar\.gz is refused: .*(outside|absolute path)"):
        file_utils.load_archive_file(str(path))
    assert path.read_bytes() == content


def test_what_stays_inside_is_unpacked(tmp_path):
    path = archive(tmp_path / "model.tar.gz", "model/dict.de.txt")
    assert file_utils.load_archive_file(str(path)) == str(path)
    assert sorted(file.name for file in path.iterdir()) == ["checkpoint.pt", "dict.de.txt"]
