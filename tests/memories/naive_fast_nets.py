"""Fast nets, one head and one position after the other, written from the equations of the papers.

Nothing is shared with the package under test but the names of parameters. Matrices are (value, key) as in the papers.
It is in torch, so that the gradients of values and parameters can be compared as well.
"""

import math

import torch
from torch import sigmoid
from torch.nn.functional import layer_norm

EPS = 1e-6


def identity(x, head, weight):
    return x


def elu(x, head, weight):
    return torch.where(x > 0, x + 1, x.exp())


def relu(x, head, weight):
    return x.clamp(min=0)


def dpfp(x, head, weight):
    r = torch.cat([x.clamp(min=0), (-x).clamp(min=0)])
    return torch.stack([r[i] * r[i - 1] for i in range(len(r))])


def softmax(x):
    return x.exp() / x.exp().sum()


def hedgehog(x, head, weight):
    y = weight[head] @ x
    return torch.cat([softmax(y), softmax(-y)])


MAPS = {"identity": identity, "elu": elu, "relu": relu, "dpfp": dpfp, "hedgehog": hedgehog}


def written(W, k, v, logit):
    """The delta rule."""
    return W + sigmoid(logit) * torch.outer(v - W @ k, k)


class Head:
    """One head of one row, from position to position."""

    def __init__(self, layer, head):
        self.layer, self.head, self.options = layer, head, layer.options
        usual = "none" if self.options.fast_net == "fwp1991" else "sum"
        self.normalizer = {"auto": usual}.get(self.options.normalizer, self.options.normalizer)
        self.depth = self.options.fast_net_depth or 1
        self.matrices = {}
        self.y = self.h = self.c = torch.zeros(layer.head_dim, dtype=torch.float64)

    def features(self, x, holder, queries):
        own = holder.query_map if queries else None
        own = holder.feature_map if own is None else own
        phi = MAPS[self.options.feature_map](x, self.head, getattr(own, "weight", None))
        if self.normalizer == "sum":
            return phi / (phi.sum() + EPS)
        return phi / ((phi**2).sum().sqrt() + EPS) if self.normalizer == "l2" else phi

    def recalled(self, name, holder, q, k, v, logit):
        """Writes v for k into a matrix with features, and reads it with q."""
        phi = self.features(k, holder, False)
        W = self.matrices.get(name, torch.zeros(len(v), len(phi), dtype=torch.float64))
        self.matrices[name] = written(W, phi, v, logit)
        return self.matrices[name] @ self.features(q, holder, True)

    def recurrent(self, name, k, v, logit, fed):
        d = len(fed)
        R = self.matrices.get(name, torch.zeros(d, d, dtype=torch.float64))
        self.matrices[name] = written(R, softmax(k), v, logit)
        return self.matrices[name] @ softmax(fed)

    def step(self, s):
        """Reads and writes with what the slow net gives, without feedback."""
        return getattr(self, self.options.fast_net)(s)

    def linear(self, s):
        return self.recalled("W", self.layer.memory.features, s["q"], s["k"], s["v"], s["beta"])

    def rnn(self, s):
        self.h = self.linear(s) + self.recurrent("R", s["k_r"], s["v_r"], s["beta_r"], self.h)
        return self.h

    def lstm(self, s):
        z = {}
        for gate, end in (("u", ""), ("i", "_i"), ("o", "_o")):
            given = (s[f"{part}{end}"] for part in ("q", "k", "v", "beta"))
            z[gate] = self.recalled(f"W{gate}", self.layer.memory.features, *given)
            z[gate] = z[gate] + self.recurrent(f"R{gate}", s[f"k_r{gate}"], s[f"v_r{gate}"], s[f"beta_r{gate}"], self.h)
        share = sigmoid(z["i"])
        self.c = share * z["u"] + (1 - share) * self.c
        self.h = sigmoid(z["o"]) * self.c
        return self.h

    def mlp(self, s):
        net = self.layer.memory
        s = s | {"k1_0": s["k"], "beta1_0": s["beta"], "v2_0": s["v"]}
        h = s["q"]
        for b in range(self.depth):
            norm = net.norms[b]
            first = net.inner[b - 1] if b else net.features
            normed = layer_norm(h, h.shape, norm.weight, norm.bias)
            hidden = self.recalled(f"W1_{b}", first, normed, s[f"k1_{b}"], s[f"v1_{b}"], s[f"beta1_{b}"])
            assert len(hidden) == 4 * len(h)
            h = h + self.recalled(f"W2_{b}", net.outer[b], hidden, s[f"k2_{b}"], s[f"v2_{b}"], s[f"beta2_{b}"])
        return h

    def delta(self, s):
        d = len(s["q"])
        value = torch.cat([s["v_q"], s["v_k"], s["v"], s["v_beta"]])
        given = self.recalled("W", self.layer.memory.features, s["q"], s["k"], value, s["beta"])
        q, k, v, logit = given[:d], given[d : 2 * d], given[2 * d : 3 * d], given[3 * d]
        return self.recalled("second", self.layer.memory.second, q, k, v, logit)

    def fwp1991(self, s):
        phi = self.features(s["k"], self.layer.memory.features, False)
        W = self.matrices.get("W", torch.zeros(len(s["v"]), len(phi), dtype=torch.float64))
        grown = torch.exp(2 * (W + torch.outer(s["v"], phi)))
        self.matrices["W"] = (grown - 1) / (grown + 1)
        return self.matrices["W"] @ self.features(s["q"], self.layer.memory.features, True)


def slow(layer, x, head):
    """What the slow net gives a head for one input vector, by name; the logit of a strength is a number."""
    d = layer.head_dim
    rows = slice(head * d, (head + 1) * d)
    found = {}
    for name, projection in (("q", layer.q_proj), ("k", layer.k_proj), ("v", layer.v_proj)):
        found[name] = projection.weight[rows] @ x + projection.bias[rows]
    if layer.memory.beta_proj is not None:
        found["beta"] = layer.memory.beta_proj.weight[head : head + 1] @ x
    widths = layer.memory.widths
    first = head * sum(widths.values())
    for name, width in widths.items():
        found[name] = layer.memory.slow.weight[first : first + width] @ x
        first += width
    return found


def attend(layer, x, pads=None):
    """The output of a layer for x (B, L, embed_dim); what it gives at pads is NaN."""
    rows = []
    for b in range(len(x)):
        heads = [Head(layer, head) for head in range(layer.num_heads)]
        outputs = []
        for t in range(x.shape[1]):
            if pads is not None and pads[b, t]:
                outputs.append(torch.full_like(x[b, t], math.nan))
                continue
            read = []
            for number, head in enumerate(heads):
                s = slow(layer, x[b, t], number)
                if layer.options.recurrent != "none":
                    fed = {"tanh": torch.tanh, "softmax": softmax}[layer.options.recurrent](head.y)
                    weight, first = layer.memory.feedback.weight[number], 0
                    for name in s:
                        end = first + len(s[name])
                        s[name] = s[name] + weight[:, first:end].T @ fed
                        first = end
                    assert first == weight.shape[1]
                head.y = head.step({name: x[0] if "beta" in name and name != "v_beta" else x for name, x in s.items()})
                y = head.y
                if layer.output_norm is not None:
                    y = y / ((y**2).sum() / len(y) + EPS).sqrt() * layer.output_norm.weight[number]
                read.append(y)
            outputs.append(layer.out_proj.weight @ torch.cat(read) + layer.out_proj.bias)
        rows.append(torch.stack(outputs))
    return torch.stack(rows)
