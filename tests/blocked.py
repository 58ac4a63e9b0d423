"""Python code after which packages that are installed cannot be imported."""


def without(*packages: str) -> str:
    return f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {packages}:
            raise ModuleNotFoundError(name + " is blocked")

sys.meta_path.insert(0, Blocked())
"""
