"""What the CUDA kernels refuse, and why; without a GPU the problems live on torch's fake one."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fwp_fairseq import _extension
from fwp_fairseq.ops import STRENGTHS, decoding_chunked, decoding_native, native_cuda
from fwp_fairseq.ops.call import Call
from tests.cuda.shim import CUDA


def call(rule="delta", length=8, q_type=torch.bfloat16, dtype=torch.bfloat16, beta_type=torch.float32) -> Call:
    with FakeTensorMode():
        q = torch.empty(1, length, 1, 4, device="cuda", dtype=q_type)
        k = v = torch.empty(1, length, 1, 4, device="cuda", dtype=dtype)
        strength = torch.empty(1, length, 1, device="cuda", dtype=beta_type)
    beta, alpha = (strength if name in STRENGTHS[rule] else None for name in ("beta", "alpha"))
    return Call(rule, q, k, v, beta, alpha, None, True, None, True, False, 1e-6, None, False)


def test_reasons(monkeypatch):
    monkeypatch.setattr(_extension, "status", lambda: _extension.ExtensionStatus({"cuda": CUDA}, {}))
    monkeypatch.setattr(native_cuda, "_refusal", lambda *sizes: "")
    assert native_cuda.unsupported_reasons(call(), "identity") == []
    assert all(native_cuda.unsupported_reasons(call(rule), "identity") == [] for rule in STRENGTHS)
    assert "torch.float64" in native_cuda.unsupported_reasons(call(dtype=torch.float64), "identity")[0]
    assert native_cuda.unsupported_reasons(call(length=5000), "identity") == []
    monkeypatch.setattr(native_cuda, "RULES", ("sum",))
    unknown = ["the CUDA kernels do not know the gated_delta rule"]
    assert native_cuda.unsupported_reasons(call("gated_delta"), "identity") == unknown


def test_decoding_unsupported_reasons(monkeypatch):
    monkeypatch.setattr(_extension, "status", lambda: _extension.ExtensionStatus({"cuda": CUDA}, {}))
    monkeypatch.setattr(native_cuda, "_refusal", lambda *sizes: "")

    def reasons(dtype, rule="delta"):
        return native_cuda.decoding_unsupported_reasons(rule, call(dtype=dtype).k, "identity", 4)

    assert reasons(torch.bfloat16) == reasons(torch.float32) == []
    assert reasons(torch.float64) == ["the CUDA kernels do not compute in torch.float64"]
    monkeypatch.setattr(native_cuda, "RULES", ("sum",))
    assert reasons(torch.float32, "gated_delta") == ["the CUDA kernels do not know the gated_delta rule"]


def test_recurrence_unsupported_reasons(monkeypatch):
    asked, known = [], []
    monkeypatch.setattr(_extension, "status", lambda: _extension.ExtensionStatus({"cuda": CUDA}, {}))
    monkeypatch.setattr(native_cuda, "_has", lambda operator: operator in known)
    monkeypatch.setattr(native_cuda, "_refusal", lambda *sizes: asked.append(sizes) or "too wide")
    monkeypatch.setattr(native_cuda, "_index", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    single = call(dtype=torch.float32).v
    older = ["the CUDA library was built before it had a recurrence: build it again"]
    assert native_cuda.recurrence_unsupported_reasons(single) == older
    known.append("cuda_recurrence_refusal")
    assert native_cuda.recurrence_unsupported_reasons(single) == ["too wide"]
    assert asked == [("cuda_recurrence_refusal", 0, 4)]
    wrong = ["the CUDA kernels of the recurrence do not compute in torch.float64"]
    assert native_cuda.recurrence_unsupported_reasons(call(dtype=torch.float64).v) == wrong
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert native_cuda.recurrence_unsupported_reasons(single) == []


def test_a_library_without_the_kernels_of_an_operator():
    """As the CUDA library before the Delta LSTM, which the CPU library has: the dispatcher knows the operator alone."""
    definitions = torch.library.Library("fwp", "FRAGMENT")
    definitions.define("only_defined(Tensor x) -> Tensor")
    older = ["the CUDA library was built before it had what it lacks: build it again"]
    native_cuda._has_kernel.cache_clear()
    assert native_cuda.missing_kernel("only_defined", "what it lacks") == older
    definitions.impl("only_defined", lambda x: x, "CUDA")
    native_cuda._has_kernel.cache_clear()
    assert native_cuda.missing_kernel("only_defined", "what it lacks") == []


@pytest.mark.parametrize("device, dtype", [("cpu", torch.float32), ("cuda", torch.bfloat16)])
def test_half_precision_is_cached_as_it_is_by_the_cuda_kernels_alone(device, dtype):
    with FakeTensorMode():
        x = torch.empty(1, 1, 1, 4, device=device, dtype=torch.bfloat16)
    assert decoding_native.cached_type(x) == dtype
    assert decoding_chunked.cached_type(x) == torch.float32


@pytest.mark.skipif(_extension.status().cuda, reason="the CUDA library is loaded")
def test_a_missing_library_is_the_reason():
    for reasons in (
        native_cuda.unsupported_reasons(call(), "identity"),
        native_cuda.decoding_unsupported_reasons("delta", call().k, "identity", 4),
        native_cuda.recurrence_unsupported_reasons(call(dtype=torch.float32).v),
    ):
        (reason,) = reasons
        assert reason.startswith("CUDA kernels not built") or reason.startswith("CUDA kernels not loaded")


def test_half_precision_stays_where_q_k_and_v_share_it():
    assert native_cuda.input_type(call()) == native_cuda.input_type(call(beta_type=torch.bfloat16)) == torch.bfloat16
    assert native_cuda.input_type(call(q_type=torch.float32)) == torch.float32
    assert native_cuda.input_type(call(q_type=torch.float16)) == torch.float32


def test_the_refusal_is_a_constant_of_compiled_code(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.ops.fwp, "cuda_refusal", lambda *sizes: asked.append(sizes) or "too large", raising=False)
    native_cuda._refusal.cache_clear()

    @torch.compile(fullgraph=True, backend="eager")
    def compiled(x):
        return x + 1 if native_cuda._refusal("cuda_refusal", 0, 7) else x

    assert compiled(torch.zeros(1)) == 1 and compiled(torch.zeros(1)) == 1 and asked == [(0, 7)]
    native_cuda._refusal.cache_clear()
