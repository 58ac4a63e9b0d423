"""Registers models and tasks with fairseq's --user-dir even when this package was imported earlier."""

import os
import sys


class UserDir(list):
    """A package's ``__path__`` that imports the tasks and models when fairseq looks up its user directory in it.

    ``fairseq.utils.import_user_module`` imports the tasks and models of a user directory only if the package has not
    been imported yet. After ``from fwp_fairseq import ops``, for example, it only checks that the directory is in the
    package's ``__path__``, so this class imports them during that check.
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
