"""Whatever the compiled operators are given, they compute a result of the right shape or name what is wrong.

Python foretells shapes, types and strides of what they return.

A call is valid, but for up to two changes (:mod:`.random_calls`). The usual run makes a few hundred calls;
FWP_FUZZ_SECONDS=600 goes on for so long with other calls each time. A call that ends the process is in the file
``fwp-fuzz-last-call.txt`` of the temporary folder. scripts/sanitize.sh --fuzz SECONDS runs this under AddressSanitizer,
which ends the process at any access out of bounds.
"""

import faulthandler
import os
import re
import tempfile
import time
from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from tests.ops.cases import OPCHECKS
from tests.ops.random_calls import OPERATORS, calls

pytestmark = pytest.mark.needs("native")

SECONDS = float(os.environ.get("FWP_FUZZ_SECONDS", 0))
CALLS, LONGEST_CALL = 50, 60
LAST_CALL = Path(tempfile.gettempdir()) / "fwp-fuzz-last-call.txt"

# The errors of torch itself when there is no memory, no kernel, or no such size; they name no argument.
TORCH_S = re.compile(
    r"not enough memory|can't allocate|bad_alloc|overflow|Could not run 'fwp::|not implemented for|"
    r"Storage size calculation|invalid .* size|does not require grad|in-place operation|aliases|"
    r"no fallback|has no second derivative"
)

# NotImplementedError is a RuntimeError.
REFUSALS = (ValueError, IndexError, TypeError, RuntimeError)
# Python tells the shapes of tensors of other devices; it does not check what it needs for that.
REFUSALS_OF_PYTHON = (*REFUSALS, AttributeError)


def described(x) -> str:
    if not isinstance(x, torch.Tensor):
        return repr(x)[:80]
    strides = tuple(x.stride()) if x.layout == torch.strided else x.layout
    return f"{x.dtype} {tuple(x.shape)} strides {strides} on {x.device}"


def foretold(operator: str, arguments: dict) -> list:
    """What Python says that the operator returns, as tensors without content."""

    def without_content(x):
        if not isinstance(x, torch.Tensor):
            return x
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")

    return listed(getattr(torch.ops.fwp, operator)(*map(without_content, arguments.values())))


def listed(found) -> list:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def layout(x) -> tuple:
    """Type, shape, and the strides that matter."""
    strides = [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]
    return x.dtype, tuple(x.shape), strides if x.numel() else []


def check(operator: str, changes: list[str], arguments: dict) -> None:
    if SECONDS:
        lines = [operator, *changes, *(f"{name} = {described(x)}" for name, x in arguments.items())]
        LAST_CALL.write_text("\n".join(lines) + "\n")
    tensors = [x for x in arguments.values() if isinstance(x, torch.Tensor)]
    compiled = all(x.device.type == "cpu" for x in tensors)  # otherwise Python tells the shape, and checks little
    refusals = REFUSALS if compiled else REFUSALS_OF_PYTHON
    faulthandler.dump_traceback_later(LONGEST_CALL, exit=True)
    try:
        found = getattr(torch.ops.fwp, operator)(*arguments.values())
    except refusals as error:
        message = str(error)
        assert changes, f"a valid call is refused: {message}"
        named = any(re.search(rf"(?<!\w){name}(?!\w)", message) for name in arguments)
        assert not compiled or named or TORCH_S.search(message), (
            f"no argument is named: {type(error).__name__}: {message}"
        )
        return
    finally:
        faulthandler.cancel_dump_traceback_later()
    found = listed(found)
    if compiled:
        assert list(map(layout, found)) == list(map(layout, foretold(operator, arguments)))
        for x in found:  # reads all of it
            x.detach().double().sum().item()


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_opcheck(operator):
    """Schema, gradients, fake kernels and compilation, by torch's own checks with some valid calls."""

    @hypothesis.settings(max_examples=6, derandomize=True, database=None, deadline=None)
    @hypothesis.given(st.composite(lambda draw: OPERATORS[operator](draw))())
    def run(arguments):
        if f"{operator}_backward" in OPERATORS and arguments.get("places") is None:
            for name, x in arguments.items():
                if isinstance(x, torch.Tensor) and x.is_floating_point() and name != "projection":
                    x.requires_grad_()
        torch.library.opcheck(getattr(torch.ops.fwp, operator).default, tuple(arguments.values()), test_utils=OPCHECKS)

    run()


@pytest.mark.parametrize("operator", OPERATORS)
def test_any_call_is_served_or_refused(operator):
    end = time.monotonic() + SECONDS / len(OPERATORS)
    while True:

        @hypothesis.settings(
            max_examples=500 if SECONDS else CALLS, derandomize=not SECONDS, database=None, deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        @hypothesis.given(calls(operator))
        def run(call):
            check(operator, *call)

        run()
        if time.monotonic() >= end:
            break
