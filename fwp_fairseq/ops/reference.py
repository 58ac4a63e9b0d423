"""Defines the operators by plain loops over time, in any dtype, differentiated by autograd.

All other backends are tested against this one, so it is kept simple. It shares with them only the checks of the
arguments, the features of a call, the division and the folding of bidirectional heads. The equations are those of
Schlag, Irie and Schmidhuber 2021. Per head, with k = phi(k_s), q = phi(q_t):

    sum    W <- W + v k^T                    z <- z + k                    Eq. 17, 18
    delta  W <- W + beta (v - W k) k^T       z <- z + k                    Eq. 24
    gated  W <- (1 - beta) W + beta v k^T    z <- (1 - beta) z + beta k    Eq. 52 (Peng et al. 2021)
    gated_delta  (W, z) <- alpha (W, z), then as delta; without a division this is
           W <- alpha W (I - beta k k^T) + beta v k^T                      Yang, Kautz and Hatamizadeh 2025, Eq. 10
    read   y = W q

If outputs are normalised, W q / (z.q + eps) replaces W q, and in the delta rules W k / (z.k + eps) replaces W k.

Cost: O(S d_dot d_value) time per head and, under autograd, as much memory. It is meant for checking, not for training.
"""

import torch
from torch import Tensor

from .both_ways import in_both_directions
from .call import Call, FastWeights, divide


def _features(x: Tensor, call: Call) -> Tensor:
    phi = call.features(x.transpose(1, 2)).transpose(1, 2)
    if call.normalize_features:
        phi = divide(phi, phi.sum(-1, keepdim=True) + call.eps)
    return phi


def _apply(W: Tensor, x: Tensor) -> Tensor:
    """Computes W x for every batch row and head."""
    return torch.einsum("bhij,bhi->bhj", W, x)


def _outer(k: Tensor, u: Tensor) -> Tensor:
    """Computes u k^T, in the layout of W."""
    return torch.einsum("bhi,bhj->bhij", k, u)


def _retrieve(W: Tensor, z: Tensor, x: Tensor, call: Call) -> Tensor:
    """Reads the fast weights with x; the result is 0 where the denominator z.x + eps is 0."""
    y = _apply(W, x)
    if call.normalize_output:
        y = divide(y, (z * x).sum(-1, keepdim=True) + call.eps)
    return y


def _write(W: Tensor, z: Tensor, k: Tensor, v: Tensor, gates: list[Tensor], call: Call) -> tuple[Tensor, Tensor]:
    if call.rule == "sum":
        return W + _outer(k, v), z + k
    beta, *alpha = gates
    if call.rule == "gated_delta":
        W, z = alpha[0][..., None] * W, alpha[0] * z
    if call.rule in ("delta", "gated_delta"):
        old = _retrieve(W, z, k, call)
        return W + _outer(k, beta * (v - old)), z + k
    return (1 - beta)[..., None] * W + _outer(k, beta * v), (1 - beta) * z + beta * k


@in_both_directions
def run(call: Call) -> tuple[Tensor, FastWeights | None]:
    """Computes the operator; see :mod:`.fast_weights` for shapes and :class:`.call.Call` for the inputs."""
    raw_k, raw_v, raw_gates = call.k, call.v, [x for x in (call.beta, call.alpha) if x is not None]
    if call.key_padding_mask is not None:
        # The loop below skips padding anyway, but a NaN there would reach the gradients.
        pads = call.key_padding_mask[:, :, None]
        raw_k, raw_v = (x.masked_fill(pads[..., None], 0) for x in (raw_k, raw_v))
        raw_gates = [x.masked_fill(pads, 0) for x in raw_gates]
    q, k = _features(call.q, call), _features(raw_k, call)
    v = raw_v.to(call.dtype)
    batch, _, heads, d_dot = k.shape
    if call.initial_state is None:
        W = torch.einsum("bshi,bshj->bhij", k[:, :0], v[:, :0])  # zeros with the (empty) keys in their graph
        z = v.new_zeros(batch, heads, d_dot)
    else:
        W = call.initial_state.W.to(call.dtype)
        z = call.initial_state.z
        z = v.new_zeros(batch, heads, d_dot) if z is None else z.to(call.dtype)

    outputs = []
    # ``unbind`` has one backward for all positions; the backward of each slice would fill all of them with zeros.
    queries, written = q.unbind(1), zip(*(x.unbind(1) for x in (k, v, *raw_gates)), strict=True)
    for s, (k_s, v_s, *raw) in enumerate(written):
        gates = [x.to(call.dtype)[..., None] for x in raw]
        new_W, new_z = _write(W, z, k_s, v_s, gates, call)
        if call.key_padding_mask is not None:
            padded = call.key_padding_mask[:, s, None, None]
            new_W, new_z = torch.where(padded[..., None], W, new_W), torch.where(padded, z, new_z)
        W, z = new_W, new_z
        if call.causal:
            outputs.append(_retrieve(W, z, queries[s], call))
    if not call.causal:
        outputs = [_retrieve(W, z, query, call) for query in queries]

    out = torch.stack(outputs, dim=1) if outputs else torch.einsum("bthi,bhij->bthj", q[:, :0], W)
    state = FastWeights(W, z if call.normalize_output else None) if call.return_state else None
    return out.to(call.v.dtype), state
