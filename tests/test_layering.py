"""Imports point downwards only, and the operators need no fairseq."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blocked import without

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fwp_fairseq"

# What every part that computes may import.
_COMPILED = {"_constant", "_cuda_library", "_extension", "_operator"}
_TORCH = {"layers", "memories", "contradictions", "options"}
# What each part may import of the package; every part may also import itself.
ALLOWED = {
    "_constant": set(),
    "_cuda_library": {"_constant"},
    "_extension": set(),
    "_operator": {"_constant", "_extension"},
    "_user_dir": set(),
    "feature_maps": _COMPILED,
    "ops": {"feature_maps", *_COMPILED},
    "options": {"feature_maps", "ops", *_COMPILED},
    "contradictions": {"options", "feature_maps", "ops", *_COMPILED},
    "memories": {"options", "feature_maps", "ops", *_COMPILED},
    "layers": {"memories", "contradictions", "options", "feature_maps", "ops", *_COMPILED},
    "config": {"contradictions", "options", "feature_maps", "ops", *_COMPILED},
    "modules": {"config", *_TORCH, "feature_maps", "ops", *_COMPILED},
    "compat": set(),
    "text": set(),
    "checkpoint_content": {"text"},
    "mends": {"checkpoint_content", "compat", "text"},
    "files": set(),
    "records": set(),
    "tables": set(),
    "models": {"modules", "config", *_TORCH, "feature_maps", "ops", "mends", "compat", *_COMPILED},
    "criterions": {"modules", "config", *_TORCH, "feature_maps", "ops", "mends", "compat", *_COMPILED},
    "tasks": {
        "criterions",
        "models",
        "modules",
        "config",
        *_TORCH,
        "feature_maps",
        "ops",
        "mends",
        "compat",
        *_COMPILED,
    },
    "cli": None,
    "__main__": None,
    "__init__": {"_user_dir"},
}
FAIRSEQ = {
    "_user_dir",
    "config",
    "modules",
    "models",
    "criterions",
    "tasks",
    "checkpoint_content",
    "compat",
    "mends",
    "cli",
}


def _figure() -> str:
    """Draws the layers in Mermaid's language, with an arrow for each permitted import that no other path implies."""
    parts = {_part(file) for file in FILES} - {"__init__", "__main__", "_user_dir"}
    below = {part: (parts - {part} if ALLOWED[part] is None else ALLOWED[part] & parts) for part in parts}
    lines = ["```mermaid", "graph TD"]
    for part in sorted(parts, key=lambda part: (-len(below[part]), part)):
        direct = sorted(other for other in below[part] if not any(other in below[between] for between in below[part]))
        if direct:
            lines.append(f"    {part} --> {' & '.join(direct)}")
    lines += ["    classDef fairseq stroke-width:4px", f"    class {','.join(sorted(FAIRSEQ & parts))} fairseq", "```"]
    return "\n".join(lines)


def _part(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(file: Path) -> set[str]:
    """Absolute names of every module that the file imports, wherever in it."""
    package = file.relative_to(ROOT).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            found |= {".".join([*base, alias.name]) for alias in node.names}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_arrows_point_downwards(file):
    part = _part(file)
    assert part in ALLOWED, f"{part} has no place in the layers: add it to ALLOWED"
    imported = _imports(file)
    inside = {name.split(".")[1] for name in imported if name.startswith("fwp_fairseq.")}
    names = {child.name.removesuffix(".py") for child in PACKAGE.iterdir()}
    allowed = ALLOWED[part]
    if allowed is not None:
        assert inside & names <= allowed | {part}
    if part not in FAIRSEQ:
        assert not any(name.split(".")[0] == "fairseq" for name in imported)
    assert not any(name.split(".")[0] in ("scripts", "tests", "benchmarks") for name in imported)


def test_the_figure_shows_the_layers():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert _figure() in text, f"CONTRIBUTING.md has another figure of the layers than this one:\n{_figure()}"


# What each part of scripts/ may import of it; every part may also import itself.
SCRIPTS = {
    "common": set(),
    "data": {"common"},
    "translation": {"common", "data"},
    "experiments": {"common", "data", "translation"},
    "results": {"common", "experiments"},
}


def test_scripts_import_downwards():
    """What experiments share stands below them, and their tables are made without their programs."""
    for part, allowed in SCRIPTS.items():
        for file in sorted((ROOT / "scripts" / part).rglob("*.py")):
            imported = {name for name in _imports(file) if name.split(".")[0] in ("scripts", "tests", "benchmarks")}
            parts = {name.split(".")[1] if name.startswith("scripts.") else name for name in imported}
            assert parts <= allowed | {part}, f"{file.name} imports {imported}"
            if file.name == "table.py":
                assert not any("recipe" in name for name in imported), f"{file} imports {imported}"


def test_the_naive_implementation_is_independent():
    tree = ast.parse((ROOT / "tests" / "naive.py").read_text(encoding="utf-8"))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported == {"math", "numpy"}


def test_operators_and_layers_without_fairseq():
    code = """
import torch
import fwp_fairseq
from fwp_fairseq import feature_maps, ops
from fwp_fairseq.layers import FastWeightAttention, FastWeightDecoder
x = torch.rand(1, 3, 2, 4)
phi = feature_maps.build_feature_map("dpfp", 4)
out, state = ops.delta_rule(x, x, x, x[..., 0], feature_map=phi, return_state=True)
assert out.shape == (1, 3, 2, 4) and state.W.shape == (1, 2, 8, 4)
out, state = FastWeightAttention(8, 2, update_rule="delta")(torch.rand(1, 3, 8))
assert out.shape == (1, 3, 8) and state.W.shape == (1, 2, 8, 4)
logits, state = FastWeightDecoder(5, embed_dim=8, num_heads=2)(torch.tensor([[1, 2]]))
assert logits.shape == (1, 2, 5) and len(state) == 3
assert not any(name.split(".")[0] == "fairseq" for name in sys.modules)
"""
    command = [sys.executable, "-c", without("fairseq", "omegaconf", "hydra", "sacrebleu") + code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
