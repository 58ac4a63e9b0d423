"""Counts what the launches of short and long calls do, on the shim, and writes a table into csrc/cuda/README.md."""

import argparse
import itertools
import sys

import torch

from fwp_fairseq.feature_maps import build_feature_map
from fwp_fairseq.ops.call import STRENGTHS
from tests.cuda import kernels, shim

PAGE = shim.CUDA / "README.md"
BEGIN, END = "<!-- launches: python -m tests.cuda.launches -->\n", "<!-- /launches -->"
RULES = ("sum", "delta", "gated", "gated_delta")
LENGTHS, WIDTH = (32, 64, 1024), 64
DIRECTIONS = ("forward", "forward in pieces", "backward")


def count(rule: str, direction: str, length: int) -> list[shim.Launch]:
    """One head of so many positions in bfloat16, DPFP of WIDTH inputs to 256 features, normalised, causal."""
    q, k, v, grad = (torch.randn(1, length, 1, WIDTH).bfloat16() for _ in range(4))
    strengths = [torch.rand(1, length, 1) for _ in STRENGTHS[rule]]
    options = dict(
        rule=rule, feature_map=build_feature_map("dpfp", WIDTH, nu=2), causal=True, normalize_features=True,
        normalize_output=False,
    )  # fmt: skip
    with shim.counted(kernels.kernels()) as launches:
        if direction != "backward":
            multiprocessors = 132 if direction == "forward in pieces" else 0
            kernels.forward(q, k, v, *strengths, return_state=False, multiprocessors=multiprocessors, **options)
        else:
            kernels.backward(grad, q, k, v, *strengths, **options)
    return launches


def megabytes(count: int) -> str:
    return f"{count / 1e6:.2f}" if count < 1e5 else f"{count / 1e6:.1f}"


def table() -> str:
    """In Markdown: a line for each launch, and for each direction the longest chain of products and all of them."""
    head = ["positions", "rule", "direction", "kernel", "blocks a head", "warps a block", "products of a warp"]
    head += ["of all warps", "MB of global memory"]
    lines = [head, ["---"] * len(head)]
    for length, rule, direction in itertools.product(LENGTHS, RULES, DIRECTIONS):
        if direction == "forward in pieces" and length < 256:
            continue
        launches, given = count(rule, direction, length), [length, rule, direction]
        for one in launches:
            name, numbers = one.kernel.removesuffix("_kernel"), (one.most_products, one.products)
            lines.append([*given, name, one.blocks, one.threads // 32, *numbers, megabytes(one.bytes)])
        if len(launches) > 1:
            most, products, size = (sum(one[i] for one in launches) for i in (3, 4, 5))
            lines.append([*given, "all", "", "", most, products, megabytes(size)])
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cuda.launches", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the table would change")
    arguments = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    start, end = before.index(BEGIN) + len(BEGIN), before.index(END)
    after = before[:start] + table() + before[end:]
    if arguments.check:
        return int(after != before)
    PAGE.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
