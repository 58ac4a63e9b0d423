"""The fast weight memory of Schlag, Munkhdalai and Schmidhuber 2021, composed of the project's operators."""

import torch.nn.functional as F
from torch import Tensor

from fwp_fairseq import ops


def fast_weight_memory(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, backend: str = "auto") -> Tensor:
    """Writes every pair, then reads; between two writes the weights are shrunk to a norm of at most 1.

    W_1 = beta_1 v_1 k_1^T; A_s = W_{s-1} + beta_s (v_s - W_{s-1} k_s) k_s^T and W_s = A_s / max(1, |A_s|_F); and
    y_t = LayerNorm(W q_t) without affine parameters, eps 1e-5. This is the baseline "fwm" of Schlag, Irie and
    Schmidhuber 2021, who map q and k by tanh or DPFP. A write is one call of the delta rule, without normalised
    features, with a carried state. A read is one call of the sum rule that writes nothing.

    The shrinking depends on the weights themselves, so there is no chunked form. Cost: S calls, and under autograd
    memory for S states of (B, H, d_dot, d_value).

    Args:
        q: (B, T, H, d_dot), features.
        k: (B, S, H, d_dot), features, S of 1 or more.
        v: (B, S, H, d_value).
        beta: (B, S, H), after the sigmoid.

    Returns:
        (B, T, H, d_value).
    """
    state = None
    for s, (key, value, strength) in enumerate(zip(k.split(1, 1), v.split(1, 1), beta.split(1, 1), strict=True)):
        _, state = ops.delta_rule(
            q[:, :0], key, value, strength, causal=False, normalize_features=False, initial_state=state,
            backend=backend, return_state=True,
        )  # fmt: skip
        if s:
            norm = state.W.norm(dim=(-2, -1), keepdim=True)
            state = ops.FastWeights(state.W / (F.relu(norm - 1) + 1), None)
    out, _ = ops.sum_rule(
        q, k[:, :0], v[:, :0], causal=False, normalize_output=False, initial_state=state, backend=backend,
        return_state=False,
    )  # fmt: skip
    return F.layer_norm(out, out.shape[-1:])
