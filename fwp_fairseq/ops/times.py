"""Times of a device's kernels beside those of PyTorch and of softmax attention, for ``fwp check``."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.benchmark import Compare, Measurement, Timer

from ..feature_maps import FeatureMap, build_feature_map
from . import fast_weights
from .call import CORRECTING, RULES, STRENGTHS, Rule
from .decoding import Decoding

LENGTH, HEADS, WIDTH, HISTORY = 256, 8, 64, 250
ROWS = {"cpu": 1, "cuda": 32}
SECONDS = 0.3  # for each time


def _inputs(rule: Rule, length: int, device: str) -> list[Tensor]:
    """q, k, v (rows, length, heads, width) and strengths (rows, length, heads)."""
    kind = torch.device(device).type
    torch.manual_seed(1)
    like = dict(device=device, dtype=torch.float32 if kind == "cpu" else torch.float16)
    x = [torch.randn(ROWS[kind], length, HEADS, WIDTH, **like) for _ in "qkv"]
    return x + [torch.rand(ROWS[kind], length, HEADS, device=device) for _ in STRENGTHS[rule]]


def _softmax(q: Tensor, k: Tensor, v: Tensor, *_: Tensor, causal: bool = True) -> Tensor:
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal)


def _both_passes(run: Callable[..., Tensor], x: list[Tensor], read: int) -> Callable[[], object]:
    """A forward and a backward of the first ``read`` inputs."""
    x = [y.requires_grad_() for y in x[:read]]
    grad_out = torch.ones_like(run(*x))
    return lambda: torch.autograd.grad(run(*x), x, grad_out)


def _rule(rule: Rule, phi: FeatureMap, device: str) -> dict[str, Callable[[], object]]:
    def run(backend: str) -> Callable[..., Tensor]:
        normalizers = dict(normalize_features=rule in CORRECTING, normalize_output=rule not in CORRECTING)
        called = fast_weights.FUNCTIONS[rule]
        return lambda *x: called(*x, feature_map=phi, backend=backend, **normalizers)[0]

    x = _inputs(rule, LENGTH, device)
    ways = {name: _both_passes(run(name), x, len(x)) for name in ("native", "chunked")}
    return ways | {"SDPA": _both_passes(_softmax, x, 3)}


def _decoding(phi: FeatureMap, device: str) -> dict[str, Callable[[], object]]:
    """One position after HISTORY others: by a cache of recent positions, by the state, by all keys and values."""
    before, x = _inputs("delta", HISTORY, device), _inputs("delta", 1, device)
    decoding = Decoding("delta", phi, True, False, backend="native")
    _, cache = decoding.step(None, *before)
    count = cache.count
    options = dict(feature_map=phi, backend="chunked", return_state=True)
    _, state = fast_weights.delta_rule(*before, **options)
    k, v = (torch.cat([before[i], x[i]], 1) for i in (1, 2))

    def native() -> None:
        cache.count = count
        decoding.step(cache, *x)

    return {
        "native": native,
        "chunked": lambda: fast_weights.delta_rule(*x, initial_state=state, **options),
        "SDPA": lambda: _softmax(x[0], k, v, causal=False),
    }


def _measured(label: str, row: str, ways: dict[str, Callable[[], object]]) -> list[Measurement]:
    found = []
    for name, run in ways.items():
        timer = Timer("run()", globals={"run": run}, label=label, sub_label=row, description=name)
        found.append(timer.blocked_autorange(min_run_time=SECONDS))
    return found


def table(device: str) -> str:
    """The times of each rule's forward and backward, and of one decoding step; SDPA is torch's softmax attention."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.set_device(device)  # which the timer waits for
    phi, found = build_feature_map("dpfp", WIDTH, nu=2).to(device), []
    label = f"{ROWS[kind]} x {LENGTH} positions, {HEADS} heads of {WIDTH}, DPFP of {phi.d_dot}, forward and backward"
    for rule in RULES:
        found += _measured(label, f"{rule} rule", _rule(rule, phi, device))
    with torch.no_grad():
        found += _measured(label, "delta rule, one step of decoding", _decoding(phi, device))
    compared = Compare(found)
    compared.trim_significant_figures()
    return str(compared)
