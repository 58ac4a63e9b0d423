"""Times a decoder's step with a history, and the reordering of hypotheses between two steps.

The time of a step is the mean over :data:`.cases.STEPS` steps around the history, which includes growing the cache and
folding blocks. Every step writes a new key and value.
"""

from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from fwp_fairseq.ops.decoding import Decoding
from fwp_fairseq.ops.fast_weights import FUNCTIONS

from .cases import HEADS, STEPS, WIDTH, Case
from .clock import Call, Times, fastest
from .gate import LARGEST, PEERS, Errors, Refused, largest, rms
from .implementations import IMPLEMENTATIONS, SOFTMAX_KERNELS, inputs, phi, softmax, with_fastest_softmax


@dataclass(frozen=True)
class Decoder:
    """An implementation of decoding.

    ``begin(case, x)`` writes all positions of x and returns the state. ``step(case, state, x)`` writes and reads one
    position and returns (out, state). ``reorder(state, order)`` returns the state whose row i is the old row order[i].
    """

    begin: Callable
    step: Callable
    reorder: Callable


def _at(x: dict[str, Tensor], positions: slice) -> dict[str, Tensor]:
    return {name: y[:, positions] for name, y in x.items()}


def _operands(case: Case, x: dict[str, Tensor]) -> list[Tensor | None]:
    return [x["q"], x["k"], x["v"], x["beta"] if case.rule == "delta" else None]


@cache
def _decoding(case: Case) -> Decoding:
    return Decoding(case.rule, phi(case), case.rule == "delta", case.rule == "sum", backend="native")


def _ours_reordered(cache, order: Tensor):
    cache.reorder(order)
    return cache


def _by_state(case: Case, state, x: dict[str, Tensor]):
    operands = [y for y in _operands(case, x) if y is not None]
    return FUNCTIONS[case.rule](*operands, feature_map=phi(case), initial_state=state, return_state=True)


class _Keys:
    """fairseq's cache of keys and values for softmax attention by one kernel, with room for later positions."""

    def __init__(self, kernel: str | None, case: Case, x: dict[str, Tensor]):
        self.kernel = kernel
        rows, self.count = x["k"].shape[:2]
        self.k, self.v = (x["k"].new_zeros(rows, HEADS, self.count + STEPS, WIDTH) for _ in range(2))
        self.k[:, :, : self.count], self.v[:, :, : self.count] = x["k"].transpose(1, 2), x["v"].transpose(1, 2)

    def step(self, x: dict[str, Tensor]) -> Tensor:
        self.k[:, :, self.count], self.v[:, :, self.count] = x["k"][:, 0], x["v"][:, 0]
        self.count += 1
        k, v = self.k[:, :, : self.count], self.v[:, :, : self.count]
        return softmax(self.kernel, x["q"].transpose(1, 2), k, v, causal=False).transpose(1, 2)

    def reorder(self, order: Tensor) -> "_Keys":
        self.k, self.v = self.k.index_select(0, order), self.v.index_select(0, order)
        return self


def _by_softmax(kernel: str | None) -> Decoder:
    return Decoder(partial(_Keys, kernel), lambda case, keys, x: (keys.step(x), keys), _Keys.reorder)


DECODERS = {
    "ours": Decoder(
        begin=lambda case, x: _decoding(case).step(None, *_operands(case, x))[1],
        step=lambda case, cache, x: _decoding(case).step(cache, *_operands(case, x)),
        reorder=_ours_reordered,
    ),
    "softmax": _by_softmax(None),
    **{f"softmax-{kernel}": _by_softmax(kernel) for kernel in SOFTMAX_KERNELS},
    # The textbook's way to decode: the whole state is read, written, and moved when hypotheses are reordered.
    "state": Decoder(
        begin=lambda case, x: _by_state(case, None, x)[1],
        step=_by_state,
        reorder=lambda state, order: type(state)(*(None if y is None else y.index_select(0, order) for y in state)),
    ),
}


def _inputs(case: Case, device: str) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """Returns the inputs of the history, and those of each step."""
    before = max(case.length - STEPS // 2, 0)
    x = inputs(replace(case, length=before + STEPS), device)
    return _at(x, slice(before)), [_at(x, slice(t, t + 1)) for t in range(before, before + STEPS)]


def check(name: str, decoder: Decoder, case: Case, device: str) -> dict[str, float]:
    """Returns the errors of steps with two hypotheses after the second has replaced the first; raises Refused."""
    small = replace(case, rows=2 * HEADS)
    history, steps = _inputs(small, device)
    order = torch.tensor([1, 1], device=device)
    try:
        state = decoder.reorder(decoder.begin(small, history), order)
        outputs = []
        for x in steps:
            out, state = decoder.step(small, state, x)
            outputs.append(out)
    except Exception as error:
        raise Refused(f"{name}, {case.name}: {type(error).__name__}: {str(error)[:200]}") from error
    moved = {key: y[order] for key, y in history.items()}
    whole = {key: torch.cat([moved[key], *(x[key] for x in steps)], 1).double().cpu() for key in moved}
    if case.rule == "sum" or name.startswith("softmax"):
        del whole["beta"]
    expected = IMPLEMENTATIONS.get(name, IMPLEMENTATIONS["ours"]).oracle(small, **whole)[:, -STEPS:]
    error = Errors(*(measure(torch.cat(outputs, 1).double().cpu(), expected) for measure in (rms, largest)))
    limit = (LARGEST if name == "ours" else PEERS)[case.dtype].values
    if not error.largest <= limit:
        raise Refused(f"{name}, {case.name}: error of a step {error.largest:.1e}, allowed {limit:.1e}")
    return error._asdict()


class _Continued(Call):
    """A call that continues a state, which is made anew before each repeat."""

    def before(self) -> None:
        self.state = deepcopy(self.first)
        # A CUDA graph of the call reads these tensors in every replay, long after the call has put others in place.
        self.kept = copy(self.state)


class _Steps(_Continued):
    """The steps of a case."""

    def __init__(self, decoder: Decoder, case: Case, device: str):
        self.decoder, self.case, self.count = decoder, case, STEPS
        history, self.steps = _inputs(case, device)
        self.first = decoder.begin(case, history)

    def __call__(self) -> None:
        state = self.state
        for x in self.steps:
            _, state = self.decoder.step(self.case, state, x)


class _Reorder(_Continued):
    """One reordering as in beam search: the hypotheses of each sentence exchange their places."""

    def __init__(self, decoder: Decoder, case: Case, device: str):
        self.decoder = decoder
        self.first = decoder.begin(case, _inputs(case, device)[0])
        rows = case.rows // HEADS
        self.order = (torch.arange(rows) // 5 * 5 + torch.randint(0, 5, (rows,))).clamp(max=rows - 1).to(device)

    def __call__(self) -> None:
        self.decoder.reorder(self.state, self.order)


def measure(case: Case, device: str, seconds: float, names: list[str]) -> dict:
    """Measures like ``benchmarks.operators.measure``; for a reordering, ``step`` is the time of our step."""
    errors, refused = {}, {}
    for name in (name for name in DECODERS if name in {"ours", "state", *names}):
        try:
            errors[name] = check(name, DECODERS[name], case, device)
        except Refused as error:
            refused[name] = str(error)
    timed = Times({}, {})
    if "ours" in errors:
        with torch.no_grad():
            kind = _Steps if case.part == "decode" else _Reorder
            calls = {name: [kind(DECODERS[name], case, device)] for name in errors}
            if case.part == "reorder":
                calls["step"] = [_Steps(DECODERS["ours"], case, device)]
            timed = fastest(calls, device, seconds)
    return {**with_fastest_softmax(timed), "errors": errors, "refused": refused}
