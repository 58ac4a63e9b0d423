"""Compares the compiled kernels of a device with PyTorch in float64: ``python -m fwp_fairseq.ops.self_check DEVICE``.

There are small cases of every rule, of decoding, of the recurrences and of scaling rows to length one; reading a window
or a source and Hedgehog's softmax are not among them. The name of a case is printed before it runs, so that the last
line names a case that kills the process. The exit status is 1 if a case is wrong, and 3 if the device could not be
used: PyTorch could not open it, its memory is full, or the kernels do not support it.
"""

import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .. import _gpu_check
from ..feature_maps import build_feature_map, unit_rows
from . import fast_weights
from .call import CORRECTING, GATES, RULES, FastWeights, Rule
from .decoding import Decoding
from .recurrence import recur, recur_lstm

# The largest error that is allowed (see `error`). Rounding to half precision gives 2e-3; a wrong kernel far more.
LIMITS = {"cpu": 1e-4, "cuda": 1e-2}
D_KEY, D_VALUE, HEADS = 8, 24, 2
Case = Callable[[], float]


def error(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Computes the largest relative error; infinite if any number is not finite."""
    worst = 0.0
    for a, b in zip(actual, expected, strict=True):
        if a.shape != b.shape or not a.isfinite().all():
            return float("inf")
        worst = max(worst, ((a.double() - b).norm() / b.norm().clamp_min(1e-6)).item())
    return worst


def results_and_gradients(run: Callable[..., list[Tensor]], tensors: list[Tensor]) -> list[Tensor]:
    """Computes results, and the gradients of a weighted sum of their entries, whose weights are fixed."""
    tensors = [x.detach().requires_grad_() for x in tensors]
    results = run(*tensors)
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(y.shape, generator=generator).half() for y in results]
    loss = sum((y.double() * w.to(y.device)).sum() for y, w in zip(results, weights, strict=True))
    return [*(y.detach() for y in results), *torch.autograd.grad(loss, tensors)]


def inputs(rule: Rule, length: int, device: str) -> list[Tensor]:
    """Draws q, k, v and gates, rounded to bfloat16, as float64; decay is so weak that most content remains."""
    generator = torch.Generator().manual_seed(length)
    q, k = torch.randn(2, 1, length, HEADS, D_KEY, generator=generator)
    v = torch.randn(1, length, HEADS, D_VALUE, generator=generator)
    gates = torch.rand(len(GATES[rule]), 1, length, HEADS, generator=generator)
    if rule == "gated":
        gates **= 8
    elif rule == "gated_delta":
        gates[1] = 1 - gates[1] ** 8
    return [x.bfloat16().to(device, torch.float64) for x in (q, k, v, *gates)]


def _types(x: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Converts q, k and v to the dtype of a model, and the tensors after them to float32."""
    return [y.to(dtype if i < 3 else torch.float32) for i, y in enumerate(x)]


def _rule(rule: Rule, length: int, device: str, dtype: torch.dtype) -> float:
    """Compares forward and backward with padding and, for long calls, with an initial and a final state."""
    phi, x = build_feature_map("dpfp", D_KEY, nu=6), inputs(rule, length, device)  # two tiles of features
    pads = torch.zeros(1, length, dtype=torch.bool, device=device)
    pads[:, length // 2] = pads[:, -2:] = True
    corrects, has_state = rule in CORRECTING, length > 64
    if has_state:
        x += [torch.ones(1, HEADS, phi.d_dot, n, device=device, dtype=torch.float64) / 8 for n in (D_VALUE, 1)]

    def run(backend: str) -> Callable[..., list[Tensor]]:
        def called(*given: Tensor) -> list[Tensor]:
            *given, W, z = given if has_state else (*given, None, None)
            out, state = getattr(fast_weights, f"{rule}_rule")(
                *given, feature_map=phi, key_padding_mask=pads, normalize_features=corrects, normalize_output=True,
                initial_state=FastWeights(W, z.squeeze(3)) if has_state else None, backend=backend,
            )  # fmt: skip
            return [out, *(state or ())]

        return called

    return error(results_and_gradients(run("native"), _types(x, dtype)), results_and_gradients(run("chunked"), x))


def _decoding(rule: Rule, device: str, dtype: torch.dtype) -> float:
    """Compares the outputs of 40 steps of one position each; the block, which is shorter, is folded once."""
    phi, x, normalizers = build_feature_map("elu", D_KEY), inputs(rule, 40, device), (rule in CORRECTING, True)
    expected, _ = getattr(fast_weights, f"{rule}_rule")(
        *x, feature_map=phi, normalize_features=normalizers[0], normalize_output=True, backend="chunked"
    )
    decoding, cache, outputs = Decoding(rule, phi, *normalizers, backend="native"), None, []
    for t in range(40):
        position = _types([y[:, t : t + 1] for y in x], dtype)
        gates = dict(zip(GATES[rule], position[3:], strict=True))
        out, cache = decoding.step(cache, *position[:3], **gates)
        outputs.append(out)
    return error([torch.cat(outputs, 1)], [expected])


def _recurrence(run: Callable, gates: int, device: str) -> float:
    z, k, v = (x.repeat(1, 1, gates, 1) for x in (y[..., :D_KEY] for y in inputs("sum", 12, device)))
    beta = inputs("delta", 12, device)[3].repeat(1, 1, gates)
    x = [z, k.softmax(-1).bfloat16().double(), v, beta]
    actual = results_and_gradients(lambda *y: list(run(*y, backend="native")), [y.float() for y in x])
    return error(actual, results_and_gradients(lambda *y: list(run(*y, backend="chunked")), x))


def _row_function(run: Callable[[Tensor, float], Tensor], device: str) -> float:
    x = inputs("sum", 20, device)[0]
    actual = results_and_gradients(lambda y: [run(y, 1e-6)], [x.float()])
    return error(actual, results_and_gradients(lambda y: [run.in_pytorch(y, 1e-6)], [x]))


def cases(device: str) -> Iterator[tuple[str, Case]]:
    """Yields the name of each case and a function that computes its error."""
    half, other = (torch.float32,) * 2 if device == "cpu" else (torch.float16, torch.bfloat16)
    for rule in RULES:
        for length, dtype in ((32, half), (64, other), (300, half)):
            yield f"{rule} rule, {length} positions", lambda r=rule, n=length, t=dtype: _rule(r, n, device, t)
        yield f"{rule} rule, decoding", lambda r=rule: _decoding(r, device, half)
    yield "recurrence of the Delta RNN", lambda: _recurrence(recur, 1, device)
    yield "recurrence of the Delta LSTM", lambda: _recurrence(recur_lstm, 3, device)
    yield "rows of length one", lambda: _row_function(unit_rows.to_length_one, device)


def _open(device: str) -> None:
    """Uses the device with PyTorch alone, which fails if another process occupies it or its memory is full."""
    x = torch.ones(8, 8, device=device, dtype=torch.float64)
    (x @ x).sum().item()


def _compare(device: str) -> int:
    """Counts the wrong cases."""
    limit, wrong = LIMITS[torch.device(device).type], 0
    for name, case in cases(device):
        print(f"{name}: ", end="", flush=True)
        actual = case()
        good = actual <= limit
        print(f"error {actual:.1e}, at most {limit:.0e}: {'ok' if good else 'WRONG'}", flush=True)
        wrong += not good
    return wrong


def main(device: str) -> int:
    """Runs all cases on a device; returns the exit status, which the top of this file explains."""
    _gpu_check.trust()
    torch.set_num_threads(1)
    try:
        _open(device)
    except (RuntimeError, AssertionError) as error:
        print(f"PyTorch cannot use the device: {error}".partition("\n")[0])
        return _gpu_check.UNABLE
    try:
        if _compare(device):
            return 1
    except RuntimeError as error:  # CUDA's errors have several lines, of which the first says what is wrong
        print(f"{type(error).__name__}: {error}".partition("\n")[0], flush=True)
        unable = isinstance(error, NotImplementedError | torch.OutOfMemoryError) or "out of memory" in str(error)
        return _gpu_check.UNABLE if unable else 1
    print(_gpu_check.PASSED, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
