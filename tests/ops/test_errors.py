"""Everything that the public operators refuse, and that the message says what, how and what was expected."""

import re
import subprocess

import pytest
import torch

from fwp_fairseq import _operator
from fwp_fairseq.feature_maps import build_feature_map
from fwp_fairseq.ops import GATES, backends
from tests.ops.cases import OPERATORS, RULES

B, L, H, D, M = 2, 5, 3, 4, 6


def _call(rule, **given):
    """With random tensors where none are given."""
    sizes = {"q": [D], "k": [D], "v": [M], "beta": [], "alpha": []}
    tensors = {name: given.pop(name, torch.rand(B, L, H, *size)) for name, size in sizes.items()}
    return OPERATORS[rule](*(tensors[name] for name in ("q", "k", "v", *GATES[rule])), **given)


W, Z = torch.zeros(B, H, D, M), torch.zeros(B, H, D)
BAD = {
    "q-3d": ({"q": torch.rand(B, L, H)}, "q is of shape (2, 5, 3), expected 4 dimensions"),
    "q-batch": (
        {"q": torch.rand(B + 1, L, H, D)},
        "q is of shape (3, 5, 3, 4), expected (B, T, H, d_key) = (2, 5, 3, 4)",
    ),
    "q-width": (
        {"q": torch.rand(B, L, H, D + 1)},
        "q is of shape (2, 5, 3, 5), expected (B, T, H, d_key) = (2, 5, 3, 4)",
    ),
    "v-length": (
        {"v": torch.rand(B, L + 1, H, M)},
        "v is of shape (2, 6, 3, 6), expected (B, S, H, d_value) = (2, 5, 3, 6)",
    ),
    "q-list": ({"q": [[1.0]]}, "q is of type list, expected a tensor"),
    "q-device": ({"q": torch.rand(B, L, H, D, device="meta")}, "q is on meta, expected v's device, cpu"),
    "mask-shape": (
        {"key_padding_mask": torch.zeros(L, B, dtype=torch.bool)},
        "key_padding_mask is of shape (5, 2), expected (B, S) = (2, 5)",
    ),
    "mask-type": ({"key_padding_mask": torch.zeros(B, L)}, "key_padding_mask is of type torch.float32, expected torch"),
    "state-shape": (
        {"initial_state": (W[..., 1:], Z)},
        "initial_state.W is of shape (2, 3, 4, 5), expected (B, H, d_dot, d_value) = (2, 3, 4, 6)",
    ),
    "z-missing": ({"initial_state": (W, None)}, "initial_state.z is None, expected a tensor of shape (2, 3, 4)"),
    "z-shape": (
        {"initial_state": (W, Z[:, :1])},
        "initial_state.z is of shape (2, 1, 4), expected (B, H, d_dot) = (2, 3, 4)",
    ),
    "state-tensor": ({"initial_state": W}, "initial_state is of type Tensor, expected a pair (W, z)"),
    "eps": ({"eps": -1e-6}, "eps is -1e-06, expected 0 or more"),
    "eps-nan": ({"eps": float("nan")}, "eps is nan, expected 0 or more"),
    "backend": ({"backend": "triton"}, "backend is 'triton', expected one of auto, chunked, native, reference"),
    "map-width": (
        {"feature_map": build_feature_map("elu", D + 1)},
        "k is of width 4, expected the feature map's d_key = 5",
    ),
}
BAD_BETAS = {
    "length": (torch.rand(B, L + 1, H), "beta is of shape (2, 6, 3), expected (B, S, H) = (2, 5, 3)"),
    "none": (None, "beta is None, expected a tensor"),
}


@pytest.mark.parametrize("name", BAD_BETAS)
@pytest.mark.parametrize("rule", ["delta", "gated", "gated_delta"])
def test_strengths(rule, name):
    tensor, message = BAD_BETAS[name]
    for strength in GATES[rule]:
        with pytest.raises(ValueError, match=f"^{rule}_rule: {re.escape(message.replace('beta', strength))}"):
            _call(rule, **{strength: tensor})


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("rule", RULES)
def test_tensors_and_options(rule, name):
    given, message = BAD[name]
    with pytest.raises(ValueError, match=f"^{rule}_rule: {re.escape(message)}"):
        _call(rule, normalize_output=True, **given)


@pytest.mark.parametrize("rule", RULES)
def test_causal_needs_as_many_queries_as_keys(rule):
    with pytest.raises(ValueError, match=rf"{rule}_rule: causal=True .* T = 4 and S = 5"):
        _call(rule, q=torch.rand(B, 4, H, D), causal=True)
    out, _ = _call(rule, q=torch.rand(B, 4, H, D), causal=False)
    assert out.shape == (B, 4, H, M)


@pytest.mark.parametrize("rule", RULES)
def test_a_backend_that_cannot_serve_says_why(rule, monkeypatch, caplog):
    """Asked for by name it refuses with every reason; auto falls back, and logs the reasons."""
    reasons = [f"no such unit for the {rule} rule", "nor a compiler"]
    monkeypatch.setattr(backends.native, "unsupported_reasons", lambda call: reasons)
    served, choose = [], _operator.Operator.choose
    monkeypatch.setattr(_operator.Operator, "choose", lambda *call: served.append(choose(*call)) or served[-1])
    with pytest.raises(NotImplementedError, match=f"^backend='native' cannot serve {rule}_rule: {'; '.join(reasons)}$"):
        _call(rule, backend="native")
    assert served == []
    with caplog.at_level("INFO", logger=_operator.logger.name):
        _call(rule)
        _call(rule)
    assert served == ["chunked", "chunked"]
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", f"fast weights: backend chunked serves, not native: {'; '.join(reasons)}")
    ]


WITHOUT_LIBRARY = """
import torch
from fwp_fairseq import _extension
_extension.status = lambda: _extension.ExtensionStatus({}, {part: "not built: no compiler" for part in ("cpu", "cuda")})
from fwp_fairseq import ops
for _ in range(2):
    ops.sum_rule(*torch.rand(3, 1, 2, 1, 4))
"""


@pytest.mark.slow
def test_a_missing_library_is_a_warning_without_any_logging_set_up(forked_python):
    done = subprocess.run([forked_python.program, "-c", WITHOUT_LIBRARY], capture_output=True, text=True, timeout=120)
    assert done.stderr == "fast weights: backend chunked serves, not native: not built: no compiler\n"
    assert (done.stdout, done.returncode) == ("", 0)
