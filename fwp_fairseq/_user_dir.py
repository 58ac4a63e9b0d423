"""What fairseq finds of this package when it was imported before fairseq reads --user-dir."""

import os
import sys


class UserDir(list):
    """The ``__path__`` of a package that fairseq takes for its --user-dir.

    ``fairseq.utils.import_user_module`` imports a user directory's tasks and models only where the package has not been
    imported yet. Otherwise (``from fwp_fairseq import ops`` came first) it asks whether the directory is in the
    package's ``__path__`` and leaves both out, so the answer to that question registers them.
    """

    def __init__(self, path, package: str):
        super().__init__(path)
        self.package = package

    def __contains__(self, folder) -> bool:
        if os.path.realpath(folder) not in map(os.path.realpath, self):
            return False
        if "fairseq" not in sys.modules:
            return True
        from fairseq.models import import_models
        from fairseq.tasks import import_tasks

        for kind, import_folder in (("tasks", import_tasks), ("models", import_models)):
            modules = os.path.join(self[0], kind)
            if os.path.isdir(modules):
                import_folder(modules, f"{self.package}.{kind}")
        return True
