"""What Python asks the CUDA library, on a machine without one."""

import torch

from fwp_fairseq import _extension, _self_check
from fwp_fairseq.ops import native_cuda
from fwp_fairseq.ops.call import Call


def test_lengths_may_be_symbolic(monkeypatch, tmp_path):
    """torch.compile with dynamic shapes: what is a constant of compiled code depends on no length."""
    monkeypatch.setattr(_extension, "status", lambda: _extension.ExtensionStatus({"cuda": tmp_path}, {}))
    monkeypatch.setattr(native_cuda, "_is_available", lambda: True)
    monkeypatch.setattr(native_cuda, "_index", lambda device: 0)
    monkeypatch.setattr(_self_check, "failure", lambda index: "")
    asked = []

    def refusal(*sizes):
        asked.append(sizes)
        return ""

    monkeypatch.setattr(torch.ops.fwp, "cuda_refusal", refusal, raising=False)
    native_cuda._refusal.cache_clear()

    @torch.compile(fullgraph=True, backend="eager")
    def compiled(x):
        given = Call("sum", x, x, x, None, None, None, True, None, True, False, 1e-6, None, False)
        return x + len(native_cuda.unsupported_reasons(given))

    for length in (3, 5, 8):
        x = torch.zeros(1, length, 1, 4, dtype=torch.bfloat16)
        torch._dynamo.mark_dynamic(x, 1)
        assert not compiled(x).any()
    native_cuda._refusal.cache_clear()
    assert set(asked) == {(0, "sum", 4, 4)}
