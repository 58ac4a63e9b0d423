"""Inputs of the operators, with the results that tests/naive.py gives for them."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import build_feature_map
from fwp_fairseq.feature_maps.softmax_pair import SoftmaxPair
from fwp_fairseq.ops import GATES, RULES, backends
from fwp_fairseq.ops.call import CORRECTING
from tests import naive
from tests.requirements import serves

# name: (normalize_features, normalize_output)
NORMALIZERS = {"attention": (False, True), "sum": (True, False), "both": (True, True), "none": (False, False)}
MAPS = ("identity", "elu", "relu", "dpfp-1", "dpfp-2", "favor", "softmax_pair")
SMALL = {"batch": 2, "heads": 1}
MASKS = ("none", "left", "right", "holes", "empty-row")
OPERATORS = {rule: getattr(ops, f"{rule}_rule") for rule in RULES}
D_KEY, D_VALUE = 3, 5
# What torch.library.opcheck does.
OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def feature_map(name: str, d_key: int = D_KEY):
    """Returns the package's map (or None for the identity) and the naive one."""
    if name == "identity":
        return None, naive.identity
    if name in ("elu", "relu"):
        return build_feature_map(name, d_key), getattr(naive, name)
    if name == "softmax_pair":
        return SoftmaxPair(d_key), naive.softmax_pair
    if name.startswith("dpfp"):
        nu = int(name[-1])
        return build_feature_map("dpfp", d_key, nu=nu), naive.dpfp(nu)
    phi = build_feature_map("favor", d_key, m=5).eval()
    return phi, naive.favor(phi.projection.double().numpy(), d_key**-0.25)


def mask_of(kind: str, batch: int, length: int, generator: torch.Generator):
    if kind == "none":
        return None
    mask = torch.zeros(batch, length, dtype=torch.bool)
    for row in range(1, batch):
        pads = min(row * length // 3 + 1, length)
        if kind == "left":
            mask[row, :pads] = True
        elif kind == "right":
            mask[row, length - pads :] = True
        elif kind == "holes":
            mask[row] = torch.rand(length, generator=generator) < 0.4
    if kind == "empty-row":
        mask[-1] = True
    return mask


@dataclass
class Case:
    """One call. ``options`` holds the keyword arguments that operators and naive implementation have in common."""

    rule: str
    tensors: dict[str, torch.Tensor]
    phi: object
    naive_phi: object
    mask: torch.Tensor | None
    state: tuple | None
    options: dict = field(default_factory=dict)

    def run(self, backend: str = "auto", **changes):
        """Returns (out, W, z) of the package; z is None if the output is not normalised.

        If the backend does not have the rule another one is used, because property tests draw both at random.
        """
        if backend in backends.BACKENDS and not serves(backend, self.rule):
            backend = "auto"
        keywords = dict(
            feature_map=self.phi, key_padding_mask=self.mask, initial_state=self.state, backend=backend,
            return_state=True, **self.options,
        )  # fmt: skip
        out, state = OPERATORS[self.rule](*self.tensors.values(), **(keywords | changes))
        return (out, *((None, None) if state is None else state))

    def expected(self):
        """Returns (out, W, z) of tests/naive.py."""
        arrays = [tensor.detach().double().numpy() for tensor in self.tensors.values()]
        W, z = (None, None) if self.state is None else (None if x is None else x.double().numpy() for x in self.state)
        padded = None if self.mask is None else self.mask.numpy()
        out, W, z = naive.attend(self.rule, *arrays, phi=self.naive_phi, padded=padded, W=W, z=z, **self.options)
        return out, W, z if self.options["normalize_output"] else None

    def leaves(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Copies of everything that can have a gradient, by name; W0 and z0 are the state."""
        state = {} if self.state is None else dict(zip(("W0", "z0"), self.state, strict=True))
        given = {name: x for name, x in (self.tensors | state).items() if x is not None}
        return {name: x.detach().to(dtype or x.dtype).requires_grad_() for name, x in given.items()}

    def of(self, leaves: dict[str, Tensor]) -> "Case":
        """The same call of other tensors."""
        state = None if self.state is None else (leaves["W0"], leaves.get("z0"))
        return replace(self, tensors={name: leaves[name] for name in self.tensors}, state=state)

    def results(self, backend: str, dtype=None, reads=("out", "W", "z"), **changes) -> dict[str, Tensor]:
        """Values, and gradients of a fixed random function of those that ``reads`` names."""
        leaves = self.leaves(dtype)
        values = dict(zip(("out", "W", "z"), self.of(leaves).run(backend, **changes), strict=True))
        values = {name: x for name, x in values.items() if x is not None}
        generator = torch.Generator().manual_seed(1)
        loss = sum(0 * x.sum() for x in leaves.values())  # so that nothing is without a gradient
        for name, x in values.items():
            weight = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype)
            loss = loss + (x * weight).sum() if name in reads else loss
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        found = values | {f"gradient of {name}": x for name, x in zip(leaves, gradients, strict=True)}
        return {name: x.detach() for name, x in found.items()}

    def to(self, dtype: torch.dtype) -> "Case":
        state = self.state and tuple(None if x is None else x.float() for x in self.state)
        tensors = {name: tensor.to(dtype) for name, tensor in self.tensors.items()}
        return Case(self.rule, tensors, self.phi, self.naive_phi, self.mask, state, self.options)


def make(
    rule: str,
    map_name: str = "dpfp-2",
    normalizer: str = "both",
    *,
    causal: bool = True,
    length: int = 6,
    targets: int | None = None,
    mask: str = "none",
    state: bool = False,
    batch: int = 3,
    heads: int = 2,
    d_key: int = D_KEY,
    d_value: int = D_VALUE,
    eps: float = 1e-6,
    seed: int = 0,
) -> Case:
    """Makes a case in float64, in fairseq's layout: views of (L, B, C)."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    phi, naive_phi = feature_map(map_name, d_key)
    normalize_features, normalize_output = NORMALIZERS[normalizer]
    targets = length if targets is None else targets

    def view(positions: int, width: int) -> torch.Tensor:
        x = torch.randn(positions, batch, heads * width, generator=generator, dtype=torch.float64)
        return x.unflatten(-1, (heads, width)).transpose(0, 1)

    q, k, v = 0.7 * view(targets, d_key), 0.7 * view(length, d_key), view(length, d_value)
    if map_name == "identity":
        q, k = q.abs(), k.abs()
    tensors = {"q": q, "k": k, "v": v}
    if "beta" in GATES[rule]:
        beta = 0.05 + 0.9 * torch.rand(batch, length, heads, generator=generator, dtype=torch.float64)
        # The delta rule diverges with wide steps on keys that are not normalised.
        tensors["beta"] = 0.2 * beta if rule in CORRECTING and not normalize_features else beta
    if "alpha" in GATES[rule]:
        alpha = torch.rand(batch, length, heads, generator=generator, dtype=torch.float64)
        # Some positions forget everything. Not where that leaves a denominator of eps, and with it huge gradients.
        tensors["alpha"] = alpha**0.2 if normalize_output else torch.where(alpha < 0.1, 0.0, alpha**0.2)
    initial = None
    if state:
        d_dot = len(naive_phi(np.zeros(d_key)))
        W = torch.randn(batch, heads, d_dot, d_value, generator=generator, dtype=torch.float64)
        z = 0.1 + torch.rand(batch, heads, d_dot, generator=generator, dtype=torch.float64)
        initial = (W, z if normalize_output else None)
    options = dict(causal=causal, normalize_features=normalize_features, normalize_output=normalize_output, eps=eps)
    return Case(rule, tensors, phi, naive_phi, mask_of(mask, batch, length, generator), initial, options)
