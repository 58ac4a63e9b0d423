"""The public operators, which check their arguments and pass the call to a backend.

Shapes, the same for all operators (B batch rows, T targets, S sources, H heads; L is a number of positions):

    q     (B, T, H, d_key)        queries before phi; with feature_map None, features of width d_dot
    k     (B, S, H, d_key)        keys, before phi or features as for q
    v     (B, S, H, d_value)      values
    beta  (B, S, H)               write strength, usually in [0, 1] after a sigmoid (all rules except the sum rule)
    alpha (B, S, H)               decay, which multiplies all earlier content, usually in (0, 1] (gated delta rule)
    out   (B, T, H, d_value)      in v's dtype
    state FastWeights(W, z)       W (B, H, d_dot, d_value), z (B, H, d_dot) or None; float32 for half-precision inputs

All dimensions except the last may have any stride, so fairseq's (T, B, C) tensors can be passed as views.

Options, the same for all operators:

    feature_map         phi, which is applied to q and k; None if they are features already
    causal              True: position t reads right after its own write, which requires T = S; False: everything is
                        written first, and every query reads the final weights
    key_padding_mask    (B, S), bool, True at padding, on either side; a padded position writes nothing
    normalize_features  True: phi(q) and phi(k) are divided by their sum + eps (Schlag et al. 2021, Sec. 4.2)
    normalize_output    True: outputs are divided by z_t . phi(q_t) + eps, where the accumulator z is the sum of phi(k)
    eps                 the constant added to every denominator (1e-6)
    initial_state       FastWeights, or a plain pair with None for an unused z; never modified
    return_state        True: the final state is returned; None: only if an initial state is given. For inputs as short
                        as 32 positions, computing the state can take up to 8 times as long as the outputs
    both_ways           True: the second half of the heads goes from the last position to the first; requires causal,
                        no state and an even number of heads
    backend             auto, reference, chunked or native

Every rule returns ``(out, state)``; the state is None unless it is requested or an initial state is given. A wrong
shape, dtype or device raises ValueError, which names the tensor; so does causal with T != S, naming both lengths. If a
backend other than auto does not support the inputs, NotImplementedError lists the reasons. Cost per head: O(L^2 (d_dot
+ d_value)) up to 128 positions, O(L d_dot d_value) beyond, and for the delta rules a triangular system of the length of
a chunk (see :mod:`.chunked`).

Zero denominators: with eps = 0, a denominator can be exactly zero, for example if the sparse features of DPFP have
nothing in common with the keys written so far. The quotient is then defined as 0, with gradient 0.

Values of beta and alpha are not checked, because a check would have to wait for the GPU and would break compiled
graphs. Outside [0, 1] every backend computes the same equations; each rule below says what this means.

Derivatives: every backend has gradients, but ``native`` has no second derivatives. ``chunked`` and ``reference`` also
support forward mode (``torch.autograd.forward_ad``) and the transforms of ``torch.func``; ``auto`` then chooses
``chunked``, and ``native`` raises an error.

NaN and infinity in the keys, values and gates of padding reach no output. Elsewhere they reach the outputs that depend
on them. The matrix products of ``chunked`` may also carry them to other positions of the same batch row and head, but
no further.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..numerics import state_type, without_autocast
from . import backends
from .call import EPS, Call, FastWeights, Rule, divide, without_pads
from .checks import check_mask, check_shapes, check_tensor, fail

# With a smaller eps, features are normalised before they reach a backend, because their products could underflow.
SMALLEST_EPS = 1e-12


def _checked_sizes(operator: str, q: Tensor, k: Tensor, v: Tensor, gates: dict[str, Tensor]) -> dict[str, int]:
    """Checks all inputs of a rule but the mask and the state, and returns the sizes of their dimensions by name."""
    check_tensor(operator, "v", v, 4)
    check_tensor(operator, "q", q, 4, v.device)
    check_tensor(operator, "k", k, 4, v.device)
    batch, sources, heads, d_key = k.shape
    sizes = {"B": batch, "T": q.shape[1], "S": sources, "H": heads, "d_key": d_key, "d_value": v.shape[3]}
    rows = {"q": (q, "B T H d_key"), "v": (v, "B S H d_value")}
    check_shapes(operator, v.device, sizes, **rows, **{name: (x, "B S H") for name, x in gates.items()})
    return sizes


def _checked_state(operator: str, state: FastWeights | tuple, sizes: dict[str, int], feature_map, device, need_z: bool):
    if not isinstance(state, tuple | list) or len(state) != 2:
        fail(operator, "initial_state", f"of type {type(state).__name__}", "a pair (W, z)")
    W, z = state
    check_tensor(operator, "initial_state.W", W, 4, device)
    d_dot = sizes["d_key"] if feature_map is None else getattr(feature_map, "d_dot", W.shape[-2])
    sizes = sizes | {"d_dot": d_dot}
    check_shapes(operator, device, sizes, **{"initial_state.W": (W, "B H d_dot d_value")})
    if not need_z:
        return FastWeights(W, None)
    if z is None:
        shape = tuple(W.shape[:3])
        fail(operator, "initial_state.z", "None", f"a tensor of shape {shape} because normalize_output is True")
    check_shapes(operator, device, sizes, **{"initial_state.z": (z, "B H d_dot")})
    return FastWeights(W, z)


def divided_features(x: Tensor, feature_map, dtype: torch.dtype, eps: float) -> Tensor:
    """Computes phi(x) divided by its sum + eps, (B, L, H, d_dot)."""
    with without_autocast(x):
        phi = x.to(dtype)
        if feature_map is not None:
            phi = feature_map(phi.transpose(1, 2)).to(dtype).transpose(1, 2)
        return divide(phi, phi.sum(-1, keepdim=True) + eps)


def _call(
    rule: Rule,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: dict[str, Tensor],
    *,
    feature_map: Callable[[Tensor], Tensor] | None = None,
    causal: bool = True,
    key_padding_mask: Tensor | None = None,
    normalize_features: bool,
    normalize_output: bool,
    eps: float = EPS,
    initial_state: FastWeights | tuple | None = None,
    backend: str = "auto",
    return_state: bool | None = None,
    both_ways: bool = False,
) -> tuple[Tensor, FastWeights | None]:
    operator = f"{rule}_rule"
    sizes = _checked_sizes(operator, q, k, v, gates)
    if causal and q.shape[1] != k.shape[1]:
        raise ValueError(
            f"{operator}: causal=True needs as many queries as keys, got T = {q.shape[1]} and S = {k.shape[1]}"
        )
    if both_ways and not (causal and initial_state is None and not return_state):
        fail(operator, "both_ways", "True", "causal=True with it, no initial_state and no return_state")
    if both_ways and k.shape[2] % 2:
        fail(operator, "both_ways", f"True for H = {k.shape[2]}", "an even number of heads")
    if key_padding_mask is not None:
        check_mask(operator, key_padding_mask, sizes, "B S", v.device)
    if not eps >= 0:  # NaN is refused too
        fail(operator, "eps", eps, "0 or more")
    if backend not in backends.CHOICES:
        fail(operator, "backend", repr(backend), f"one of {', '.join(backends.CHOICES)}")
    d_key = getattr(feature_map, "d_key", k.shape[-1])
    if d_key != k.shape[-1]:
        fail(operator, "k", f"of width {k.shape[-1]}", f"the feature map's d_key = {d_key}")
    if initial_state is not None:
        initial_state = _checked_state(operator, initial_state, sizes, feature_map, v.device, normalize_output)
    if return_state is None:
        return_state = initial_state is not None
    if normalize_features and eps < SMALLEST_EPS:
        # Backends divide products of features by sums of features. With so small an eps, the sums may be so small that
        # the products are 0.
        raw = q, without_pads(k, key_padding_mask)
        q, k = (divided_features(x, feature_map, state_type(v.dtype), eps) for x in raw)
        feature_map, normalize_features = None, False
    call = Call(
        rule, q, k, v, gates.get("beta"), gates.get("alpha"), feature_map, causal, key_padding_mask,
        normalize_features, normalize_output, eps, initial_state, return_state, both_ways,
    )  # fmt: skip
    with without_autocast(v):
        return backends.OPERATORS[rule](backend, call)


def sum_rule(
    q: Tensor, k: Tensor, v: Tensor, *, normalize_features: bool = False, normalize_output: bool = True, **options: Any
) -> tuple[Tensor, FastWeights | None]:
    """Computes linear attention, which adds each key-value pair to the fast weights.

    W_s = W_{s-1} + v_s phi(k_s)^T, z_s = z_{s-1} + phi(k_s), y_t = W_t phi(q_t) / (z_t . phi(q_t) + eps)
    (Schlag et al. 2021, Eq. 17-19; Katharopoulos et al. 2020).

    For the options and the results, which all rules share, see the top of this module.
    """
    return _call(
        "sum", q, k, v, {}, normalize_features=normalize_features, normalize_output=normalize_output, **options
    )


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    normalize_features: bool = True,
    normalize_output: bool = False,
    **options: Any,
) -> tuple[Tensor, FastWeights | None]:
    """Computes the delta rule: each write moves the value stored under its key towards v, by the factor beta.

    W_s = W_{s-1} + beta_s (v_s - W_{s-1} phi(k_s)) phi(k_s)^T, y_t = W_t phi(q_t) (Schlag et al. 2021, Eq. 24-25). With
    ``normalize_output``, the old value is W_{s-1} phi(k_s) / (z_{s-1} . phi(k_s) + eps), which is zero for the first
    key of a sequence, and y_t is divided by z_t . phi(q_t) + eps (Eq. 26-28); z is the sum of phi(k), not beta phi(k).

    The defaults are the paper's: features are divided by their sum, without which the rule diverges, and outputs are
    not normalised.

    Args:
        beta: (B, S, H), write strength after the sigmoid; 0 writes nothing. If phi(k) has length 1, beta = 1 replaces
            the old value of the key, and above 1 the write overshoots: what remains of the old value changes its sign.
            With shorter features, such as those divided by their sum, only part of it is replaced. With features of
            length 1 or less, the old value is amplified only for beta above 2 or below 0.
        options: see the top of this module.
    """
    return _call(
        "delta", q, k, v, {"beta": beta}, normalize_features=normalize_features, normalize_output=normalize_output,
        **options,
    )  # fmt: skip


def gated_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    normalize_features: bool = False,
    normalize_output: bool = True,
    **options: Any,
) -> tuple[Tensor, FastWeights | None]:
    """Computes the gated rule of Peng et al. 2021: all earlier content decays at each write, whatever its key.

    W_s = (1 - beta_s) W_{s-1} + beta_s v_s phi(k_s)^T, z_s = (1 - beta_s) z_{s-1} + beta_s phi(k_s),
    y_t = W_t phi(q_t) / (z_t . phi(q_t) + eps). Eq. 52 of Schlag et al. 2021 has no z (``normalize_output=False``).

    Args:
        beta: (B, S, H), the gate after the sigmoid (1 - g in Peng et al.); 1 forgets everything before. Between 1 and
            2, the old weights shrink and change their sign at every write; outside [0, 2] they grow. Outside [0, 1]
            the output is not a mean of values.
        options: see the top of this module.
    """
    return _call(
        "gated", q, k, v, {"beta": beta}, normalize_features=normalize_features, normalize_output=normalize_output,
        **options,
    )  # fmt: skip


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    alpha: Tensor,
    *,
    normalize_features: bool = True,
    normalize_output: bool = False,
    **options: Any,
) -> tuple[Tensor, FastWeights | None]:
    """Computes the gated delta rule, under which all earlier content decays before the delta rule writes.

    W_s = alpha_s W_{s-1} (I - beta_s phi(k_s) phi(k_s)^T) + beta_s v_s phi(k_s)^T, y_t = W_t phi(q_t) (Yang, Kautz and
    Hatamizadeh 2025, "Gated Delta Networks", Eq. 10). With ``normalize_output``, the old value and y_t are divided
    as under the delta rule, with z = alpha_s z_{s-1} before the write and z_s = alpha_s z_{s-1} + phi(k_s) after it.

    With alpha = 1 this is :func:`delta_rule`, with any normaliser. Two other rules are special cases if the output is
    not normalised and the features of each key are orthogonal to those of all earlier keys: alpha = 1 - beta gives
    :func:`gated_rule`, and alpha = beta = 1 gives :func:`sum_rule`.

    Args:
        beta: as for :func:`delta_rule`.
        alpha: (B, S, H), by which W is multiplied before the write; 1 keeps everything, 0 forgets everything.
        options: see the top of this module.
    """
    gates = {"beta": beta, "alpha": alpha}
    return _call(
        "gated_delta", q, k, v, gates, normalize_features=normalize_features, normalize_output=normalize_output,
        **options,
    )  # fmt: skip


FUNCTIONS: dict[Rule, Callable] = {
    "sum": sum_rule, "delta": delta_rule, "gated": gated_rule, "gated_delta": gated_delta_rule
}  # fmt: skip
