"""What Python asks the CUDA library, on a machine without one."""

import pytest
import torch

from fwp_fairseq import _gpu_check, _operator
from fwp_fairseq.ops import native
from fwp_fairseq.ops.call import Call


@pytest.mark.needs("native")
def test_lengths_may_be_symbolic(monkeypatch):
    """torch.compile with dynamic shapes: what is a constant of compiled code depends on no length."""

    def refused(like, *sizes):
        return [reason] if (reason := _operator.refusal("cuda_refusal", 0, *sizes)) else []

    monkeypatch.setattr(native.KERNEL, "refused", refused)
    monkeypatch.setattr(_gpu_check, "failure", lambda index: "")
    asked = []

    def refusal(*sizes):
        asked.append(sizes)
        return ""

    monkeypatch.setattr(torch.ops.fwp, "cuda_refusal", refusal, raising=False)
    _operator.refusal.cache_clear()

    @torch.compile(fullgraph=True, backend="eager")
    def compiled(x):
        given = Call("sum", x, x, x, None, None, None, True, None, True, False, 1e-6, None, False)
        return x + len(native.unsupported_reasons(given))

    for length in (3, 5, 8):
        x = torch.zeros(1, length, 1, 4, dtype=torch.bfloat16)
        torch._dynamo.mark_dynamic(x, 1)
        assert not compiled(x).any()
    _operator.refusal.cache_clear()
    assert set(asked) == {(0, "sum", 4, 4)}
