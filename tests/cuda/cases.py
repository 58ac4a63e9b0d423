"""Calls of the operators on a CUDA device, against the reference in float64, values and gradients."""

import sys

import torch
from torch import Tensor

from fwp_fairseq import ops
from fwp_fairseq.ops.call import GATES, FastWeights
from tests.maps import build_map
from tests.ops import cases
from tests.tolerances import CUDA

emulated = sys.modules.get("tests.cuda.emulated_device")  # the plugin, where it is loaded

# Tracing a graph wants more of a device than can be emulated.
OPCHECKS = tuple(check for check in cases.OPCHECKS if emulated is None or "aot_dispatch" not in check)
# Root of the mean square error relative to that of the tensor, (outputs, gradients).
LIMITS = {torch.float16: CUDA["float16"], torch.bfloat16: CUDA["bfloat16"]}
DPFP = ("dpfp", {"nu": 2})
NORMALIZERS = [(True, False), (False, True), (True, True), (False, False)]


def surrounded(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Random numbers, laid out as fairseq's (T, B, C), in a larger tensor that is NaN elsewhere."""
    batch, length, heads, width = shape
    around = torch.full((length + 2, batch, heads * width + 16), float("nan"), dtype=dtype)
    x = around[1:-1, :, 8 : 8 + heads * width].unflatten(-1, (heads, width)).transpose(0, 1)
    return x.copy_((scale * torch.randn(shape)).to(dtype))


def make(
    rule: str, T: int, S: int, *, dtype, x_dtype=None, d_key=16, d_value=16, B=1, H=2, feature_map=DPFP, state=False,
    scale=1.0,
) -> tuple[dict[str, Tensor], object]:  # fmt: skip
    """The tensors of a call by name, exact in ``dtype`` or, for q and k, in ``x_dtype``, and its map."""
    torch.manual_seed(1000 * T + S)
    x_dtype = x_dtype or dtype
    x = {name: surrounded(B, n, H, d_key, dtype=x_dtype, scale=scale) for name, n in (("q", T), ("k", S))}
    if feature_map is None:  # normalisers expect features that are not negative
        x = {name: y.abs_() for name, y in x.items()}
    x["v"] = surrounded(B, S, H, d_value, dtype=dtype)
    if "beta" in GATES[rule]:
        x["beta"] = torch.rand(S, B, H).transpose(0, 1)
    if rule == "gated":
        x["beta"] **= 16  # from almost 0 to almost 1, and small enough that writes outlive chunks
    if "alpha" in GATES[rule]:
        x["alpha"] = 1 - torch.rand(S, B, H).transpose(0, 1) ** 16
    phi = None if feature_map is None else build_map(feature_map[0], d_key, **feature_map[1]).eval()
    if state:
        d_dot = d_key if phi is None else phi.d_dot
        x["W"], x["z"] = torch.randn(B, H, d_dot, d_value), torch.rand(B, H, d_dot)
    return x, phi


def mask(rows: int, length: int) -> Tensor:
    """Pads on both sides and between, and a row that has no others but the first key."""
    pads = torch.zeros(rows, length, dtype=torch.bool)
    pads[0, :2] = pads[0, -3:] = pads[0, length // 2] = True
    pads[1:, 1:] = True
    return pads


def run(
    rule, x, phi, *, backend, device, dtype=None, grad_dtype=None, key_padding_mask=None, layout=lambda y: y, **options
) -> dict:  # fmt: skip
    """Outputs, and the gradients of a fixed function of them, on the CPU; all that goes in has the layout."""
    x = {n: layout(y.to(device, dtype or y.dtype)).requires_grad_() for n, y in x.items()}
    if not options["normalize_output"]:
        x.pop("z", None)
    initial = (x["W"], x.get("z")) if "W" in x else None
    pads = None if key_padding_mask is None else layout(key_padding_mask.to(device))
    phi = None if phi is None else phi.to(device)
    out, final = getattr(ops, f"{rule}_rule")(
        *(x[n] for n in ("q", "k", "v", "beta", "alpha") if n in x), feature_map=phi, key_padding_mask=pads,
        initial_state=initial, backend=backend, **options,
    )  # fmt: skip
    found = {"out": out} | {n: y for n, y in (final or FastWeights(None, None))._asdict().items() if y is not None}
    return with_gradients(found, x, layout, grad_dtype)


def with_gradients(found: dict, x: dict, layout=lambda y: y, grad_dtype=None) -> dict[str, Tensor]:
    """What was found, and the gradients of x, which that depends on, of a fixed function of it; on the CPU."""
    generator, given = torch.Generator().manual_seed(7), {}
    for y in found.values():
        g = torch.randn(y.shape, generator=generator).to(grad_dtype or y.dtype)
        if y.requires_grad:
            given[y] = layout(g.to(y.device, y.dtype))
    gradients = torch.autograd.grad(list(given), list(x.values()), list(given.values()), materialize_grads=True)
    found = found | {f"gradient of {n}": g for n, g in zip(x, gradients, strict=True)}
    return {n: y.detach().cpu() for n, y in found.items()}


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], limits: tuple[float, float], looser=1.0) -> None:
    """By root mean square errors over those of the numbers; ``limits`` are of outputs and of gradients."""
    assert found.keys() == expected.keys()
    for name, a in expected.items():
        limit = looser * limits["gradient" in name] * max(a.norm().item(), 1e-3 * a.numel() ** 0.5)
        error = (a - found[name].double()).norm().item()
        assert error <= limit, f"{name}: error {error:.2e}, at most {limit:.2e}"


def compare(rule: str, x: dict, phi, *, looser=1.0, layout=lambda y: y, **options) -> None:
    """Asserts that the kernels agree with the reference."""
    defaults = dict(causal=True, normalize_features=True, normalize_output=False, return_state=False)
    options, dtype = defaults | options, x["v"].dtype
    options["grad_dtype"] = dtype
    expected = run(rule, x, phi, backend="reference", device="cpu", dtype=torch.float64, **options)
    found = run(rule, x, phi, backend="native", device="cuda", layout=layout, **options)
    if phi is not None:
        phi.to("cpu")
    types = {n: y.dtype for n, y in x.items()} | {"out": dtype, "W": torch.float32, "z": torch.float32}
    assert all(y.dtype == types[n.removeprefix("gradient of ")] for n, y in found.items())
    assert_near(found, expected, LIMITS[dtype], looser)
