"""Counts what somebody has to read: `python -m scripts.size [CHECKOUT]`.

Lines of the parts of a checkout and words of its pages, of the files that git tracks there; then the functions of more
than 50 lines and the files of more than 350. Records, tables of published results and figures are not counted.
"""

import ast
import subprocess
import sys
from pathlib import Path

LONGEST_FUNCTION, LONGEST_FILE = 50, 350
# Name to the beginnings of the paths that are in it, and of those that are not.
PARTS = {
    "package": (("fwp_fairseq/",), ()),
    "csrc without cuda": (("csrc/",), ("csrc/cuda/",)),
    "csrc/cuda": (("csrc/cuda/",), ()),
    "scripts": (("scripts/",), ()),
    "benchmarks": (("benchmarks/",), ()),
    "tests": (("tests/",), ()),
}
PAGES = ("README.md", "docs/kernels.md", "docs/usage.md")
CODE = {".py", ".h", ".cpp", ".cu", ".cuh", ".sh", ".yaml", ".md"}


def tracked(root: Path) -> list[str]:
    """The paths of the files to count."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    return [path for path in listed.split("\0") if Path(path).suffix in CODE and (root / path).is_file()]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def functions(path: Path) -> list[tuple[int, str]]:
    """The lines and names of the functions of a Python file, without the decorators."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(node.end_lineno - node.lineno + 1, node.name) for node in ast.walk(tree) if isinstance(node, kinds)]


def report(root: Path) -> list[str]:
    """Returns the lines of the report on a checkout."""
    files, found = tracked(root), []
    for part, (inside, outside) in PARTS.items():
        chosen = [path for path in files if path.startswith(inside) and not (outside and path.startswith(outside))]
        found.append(f"{sum(lines(root / path) for path in chosen):6,} lines  {part} ({len(chosen)} files)")
    pages = [page for page in PAGES if (root / page).is_file()]
    found += [f"{len((root / page).read_text(encoding='utf-8').split()):6,} words  {page}" for page in pages]
    long = [(n, f"{path}: {name}") for path in files if path.endswith(".py") for n, name in functions(root / path)]
    long = [(n, f"function {name}") for n, name in long if n > LONGEST_FUNCTION]
    code = [path for path in files if not path.endswith(".md")]
    long += [(n, f"file {path}") for path in code if (n := lines(root / path)) > LONGEST_FILE]
    return found + [f"{n:6,} lines  {name}" for n, name in sorted(long, reverse=True)]


if __name__ == "__main__":
    print(*report(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]), sep="\n")
