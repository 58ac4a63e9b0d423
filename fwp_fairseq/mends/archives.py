"""Unpacks an archive that is given to ``from_pretrained`` inside its own folder, or refuses it and leaves it as it is.

Symptom: An archive writes files outside of its folder, by names with ``../`` or by links, and is deleted.
Cause: fairseq unpacks whatever names the archive holds.
Test: tests/mends/test_archives.py::test_what_leaves_the_folder_is_refused
"""

import tarfile
from unittest import mock

from fairseq import file_utils

from . import around


@around(file_utils, "load_archive_file")
def load_inside(load, archive_file):
    try:
        with mock.patch.object(tarfile.TarFile, "extraction_filter", staticmethod(tarfile.data_filter)):
            return load(archive_file)
    except tarfile.FilterError as error:
        raise ValueError(f"archive {archive_file} is refused: {error}") from error
