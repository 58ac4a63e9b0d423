"""Makes archives like those that recipes download."""

import io
import tarfile


def packed(members):
    """Returns a .tgz with these files; texts are encoded as UTF-8."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz") as tar:
        for name, text in members.items():
            content = text if isinstance(text, bytes) else text.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return memory.getvalue()
