"""An independent implementation of the operators in numpy and plain loops, written from the papers' equations alone.

It shares nothing with the package under test. Weights have the paper's layout, (d_value, d_dot), and are transposed
only on the way in and out.
"""

import math

import numpy as np


def identity(x):
    return np.array(x, dtype=np.float64)


def elu(x):
    """Katharopoulos et al. 2020: x + 1 for positive x, exp(x) elsewhere."""
    return np.array([value + 1 if value > 0 else math.exp(value) for value in x])


def relu(x):
    return np.array([max(value, 0.0) for value in x])


def softmax_pair(x):
    """Zhang et al. 2024, without their W: [softmax(x), softmax(-x)]."""
    return np.array(_softmax(x) + _softmax([-value for value in x]))


def dpfp(nu):
    """Schlag et al. 2021, Listing 1: r = relu([x, -x]); block j holds r_i r_{i-j}, j = 1..nu."""

    def phi(x):
        r = [max(value, 0.0) for value in x] + [max(-value, 0.0) for value in x]
        return np.array([r[i] * r[(i - j) % len(r)] for j in range(1, nu + 1) for i in range(len(r))])

    return phi


def favor(projection, scale):
    """Schlag et al. 2021, Eq. 31-32, of scale * x: exp(-|x|^2/2) / sqrt(2m) [exp(Rx), exp(-Rx)]."""
    m = len(projection)

    def phi(x):
        x = scale * np.asarray(x, dtype=np.float64)
        products = [float(np.dot(row, x)) for row in projection]
        factor = math.exp(-float(np.dot(x, x)) / 2) / math.sqrt(2 * m)
        return np.array([factor * math.exp(p) for p in products] + [factor * math.exp(-p) for p in products])

    return phi


def _softmax(x):
    exponentials = [math.exp(value - max(x)) for value in x]
    return [value / sum(exponentials) for value in exponentials]


def t2r(weight, bias):
    """Kasai et al. 2021: relu(W x + b)."""

    def phi(x):
        return np.array([max(float(np.dot(row, x)) + b, 0.0) for row, b in zip(weight, bias, strict=True)])

    return phi


def hedgehog(weight):
    """Zhang et al. 2024: [softmax(W x), softmax(-W x)]."""

    def phi(x):
        return softmax_pair([float(np.dot(row, x)) for row in weight])

    return phi


def rfa(directions, sigma):
    """Peng et al. 2021: [sin(w.y), cos(w.y)] / sqrt(m) of the m rows w, y = sigma x / |x|."""

    def phi(x):
        length = math.sqrt(sum(value * value for value in x))
        y = [s * value / length if length else 0.0 for s, value in zip(sigma, x, strict=True)]
        angles = [float(np.dot(row, y)) for row in directions]
        return np.array([f(angle) / math.sqrt(len(angles)) for f in (math.sin, math.cos) for angle in angles])

    return phi


def rms_norm(x, weight, eps=1e-6):
    """Zhang and Sennrich 2019."""
    root = math.sqrt(sum(value * value for value in x) / len(x) + eps)
    return np.array([w * value / root for w, value in zip(weight, x, strict=True)])


def directed(x, length, eps=1e-6):
    """x, a vector, at a length that is given."""
    return np.array([length * value / (math.sqrt(sum(other * other for other in x)) + eps) for value in x])


def _quotient(numerator, denominator):
    return np.zeros_like(numerator) if denominator == 0 else numerator / denominator


def _write(rule, W, z, key, value, beta, alpha, read):
    """W and z after one write."""
    if rule == "sum":
        return W + np.outer(value, key), z + key
    if rule == "delta":
        return W + beta * np.outer(value - read(W, z, key), key), z + key
    if rule == "gated":
        return (1 - beta) * W + beta * np.outer(value, key), (1 - beta) * z + beta * key
    assert rule == "gated_delta"  # Yang, Kautz and Hatamizadeh 2025, Eq. 10, where nothing is normalised
    W, z = alpha * W, alpha * z
    return W - beta * np.outer(read(W, z, key), key) + beta * np.outer(value, key), z + key


def attend(
    rule, q, k, v, beta=None, alpha=None, *, phi=identity, causal=True, padded=None, normalize_features=False,
    normalize_output=False, eps=1e-6, W=None, z=None,
):  # fmt: skip
    """Returns (out, W, z): (B, T, H, d_value), (B, H, d_dot, d_value), (B, H, d_dot)."""
    batch, targets, heads, d_key = q.shape
    sources, d_value = k.shape[1], v.shape[3]
    d_dot = len(phi(np.zeros(d_key)))

    def features(x):
        mapped = phi(x)
        return _quotient(mapped, mapped.sum() + eps) if normalize_features else mapped

    def read(weights, seen, x):
        y = weights @ x
        return _quotient(y, seen @ x + eps) if normalize_output else y

    out = np.full((batch, targets, heads, d_value), np.nan)
    last_W, last_z = np.zeros((batch, heads, d_dot, d_value)), np.zeros((batch, heads, d_dot))
    for b, h in np.ndindex(batch, heads):
        weights = np.zeros((d_value, d_dot)) if W is None else W[b, h].T.copy()
        seen = np.zeros(d_dot) if z is None else z[b, h].copy()
        for s in range(sources):
            if padded is None or not padded[b, s]:
                strengths = (None if x is None else x[b, s, h] for x in (beta, alpha))
                weights, seen = _write(rule, weights, seen, features(k[b, s, h]), v[b, s, h], *strengths, read)
            if causal:
                out[b, s, h] = read(weights, seen, features(q[b, s, h]))
        if not causal:
            for t in range(targets):
                out[b, t, h] = read(weights, seen, features(q[b, t, h]))
        last_W[b, h], last_z[b, h] = weights.T, seen
    return out, last_W, last_z
