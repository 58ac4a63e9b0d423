"""NaN, infinities and zero denominators, as fwp_fairseq/ops/fast_weights.py documents them."""

import pytest
import torch

from fwp_fairseq import ops
from fwp_fairseq.ops import GATES
from tests.maps import build_map
from tests.ops.cases import NORMALIZERS, OPERATORS, RULES, SMALL, make
from tests.pairs import covering
from tests.requirements import TESTED
from tests.tolerances import assert_close

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("rule, normalizer, causal, junk", covering(RULES, NORMALIZERS, [True, False], [NAN, INF]))
@pytest.mark.parametrize("backend", TESTED)
def test_junk_at_pads_reaches_nothing(backend, rule, normalizer, causal, junk):
    for map_name in ("elu", "dpfp-2"):
        for length in (7, 130) if backend != "reference" else (7,):
            case = make(rule, map_name, normalizer, causal=causal, length=length, mask="holes", state=True, **SMALL)
            expected = case.run(backend)
            for name in ("k", "v", "beta", "alpha"):
                if name in case.tensors:
                    case.tensors[name][case.mask] = junk
            leaves = {name: x.detach().clone().requires_grad_() for name, x in case.tensors.items()}
            case.tensors = leaves
            found = case.run(backend)
            for actual, wanted in zip(found, expected, strict=True):
                assert wanted is None or torch.equal(actual, wanted)
            found[0].square().sum().backward()
            for name, leaf in leaves.items():
                real = leaf.grad if name == "q" else leaf.grad[~case.mask]
                assert real.isfinite().all(), name


@pytest.mark.parametrize("rule, where", [(rule, where) for rule in RULES for where in ("q", "k", "v", *GATES[rule])])
@pytest.mark.parametrize("backend", TESTED)
def test_nan_reaches_what_depends_on_it_and_no_other_row_or_head(backend, rule, where):
    case = make(rule, "elu", "both", length=9)
    clean = case.run(backend)[0]
    case.tensors[where][1, 4, 0] = NAN
    out = case.run(backend)[0]
    depends = torch.zeros(out.shape[:3], dtype=torch.bool)
    depends[1, 4:, 0] = True
    if where == "q":
        depends[1, 5:, 0] = False
    may = depends.clone()
    if backend != "reference" and where != "q":
        # Matrix products multiply the future by zero, and zero times NaN is NaN.
        may[1, :, 0] = True
    assert out[depends].isnan().all()
    assert torch.equal(out[~may], clean[~may])


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("normalizer", ["attention", "sum", "both"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", TESTED)
def test_zero_features_read_as_zero(backend, rule, normalizer, eps):
    """x = 0 has no DPFP features at all: 0 / 0 is 0, and so are the gradients."""
    for causal in (True, False):
        case = make(rule, "dpfp-1", normalizer, causal=causal, length=6, eps=eps)
        case.tensors = {name: x.detach().clone() for name, x in case.tensors.items()}
        case.tensors["q"][:, 1] = 0
        case.tensors["k"][:, 2] = 0
        expected = case.expected()[0]
        leaves = [x.requires_grad_() for x in case.tensors.values()]
        out = case.run(backend)[0]
        assert_close(out, expected, "operator")
        assert not out[:, 1].any()
        out.square().sum().backward()
        assert all(leaf.grad.isfinite().all() for leaf in leaves)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", TESTED)
def test_queries_that_miss_everything_written(backend, rule):
    """Sparse features: the accumulator is not zero, but z.q is."""
    k = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).expand(1, 4, 1, 3).clone().requires_grad_()
    q = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64).expand(1, 4, 1, 3).clone().requires_grad_()
    v = torch.ones(1, 4, 1, 2, dtype=torch.float64, requires_grad=True)
    strengths = torch.full((2, 1, 4, 1), 0.5, dtype=torch.float64).unbind()
    leaves = [q, k, v, *(x.requires_grad_() for x in strengths[: len(GATES[rule])])]
    for causal in (True, False):
        out, _ = OPERATORS[rule](*leaves, causal=causal, normalize_output=True, eps=0.0, backend=backend)
        assert not out.any()
        gradients = torch.autograd.grad(out.sum(), leaves, allow_unused=True)
        assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("feature_map", [("elu", {}), ("dpfp", {"nu": 1}), ("favor", {"m": 4})], ids=str)
@pytest.mark.parametrize("backend", TESTED)
def test_gradients_of_pads_are_zero(backend, feature_map, eps):
    phi = build_map(feature_map[0], 8, **feature_map[1])
    q, k, v = torch.randn(3, 1, 5, 2, 8)
    pads = torch.tensor([[False, False, False, True, True]])
    k[pads] = NAN
    k.requires_grad_()
    out, _ = ops.delta_rule(
        q, k, v, torch.rand(1, 5, 2), feature_map=phi, key_padding_mask=pads, eps=eps, backend=backend
    )  # fmt: skip
    out.sum().backward()
    assert not k.grad[pads].any() and k.grad.isfinite().all()
