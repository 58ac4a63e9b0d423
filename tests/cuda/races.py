"""Launches of every kernel that the shim watches for races (csrc/cuda/shim/races.h)."""

import ctypes
import itertools
from dataclasses import dataclass

import pytest
import torch

from fwp_fairseq.ops import decoding as decoding_module
from fwp_fairseq.ops.call import DECAYING
from tests.cuda import (
    decode_kernels,
    kernels,
    recurrence_kernels,
    row_function_kernels,
    test_recurrence_kernels,
    test_row_function_kernels,
)  # fmt: skip
from tests.cuda.test_decode_kernels import Sentence, Site
from tests.cuda.test_decode_kernels import make as make_decoding
from tests.cuda.test_kernels import DPFP, make
from tests.ops.test_decoding import HEADS
from tests.pairs import choose

DTYPES = (torch.float16, torch.float32)
# What leads to each kind of kernel (csrc/cuda/kernels/limits.h), and to its parts: several blocks of columns of values,
# portions of inputs, slabs of features, segments.
DIRECTIONS = ("forward", "backward")
KINDS = ("plain", "general", "favor", "state")
KERNELS = (
    *(f"{direction} {kind}" for direction in DIRECTIONS for kind in KINDS), "forward in pieces", "decode", "recurrence",
)  # fmt: skip
SHAPES = {
    "plain 16": dict(T=13, d_value=9, d_key=72),
    "plain 32": dict(T=32, d_value=70),
    "plain 64": dict(T=50),
    "plain 128": dict(T=100, feature_map=("elu", {})),
    "favor 16": dict(T=14, feature_map=("favor", {"m": 20})),
    "favor 32": dict(T=31, feature_map=("favor", {"m": 20}), d_value=70),
    "favor 64": dict(T=50, feature_map=("favor", {"m": 70})),
    "favor 128": dict(T=80, feature_map=("favor", {"m": 20})),
    "state": dict(T=40, state=True, d_value=40, d_key=72),
    "state, segments": dict(T=140, state=True),
    "state, groups of segments": dict(T=200, state=True, group=2),
    "state, outputs not normalised": dict(T=140, state=True, output=False),
    "general, state in memory": dict(T=140, state=True, d_value=40, limit=0),
    "general, slabs": dict(T=70, state=True, d_key=136, feature_map=None),
    "general, favor in slabs": dict(T=66, d_value=33, feature_map=("favor", {"m": 66}), limit=0),
}

# Of a forward in pieces.
PIECES = {
    "system solved before": dict(T=200, d_value=40, d_key=72, output=False),
    "outputs normalised": dict(T=200, state=True),
}

# Of decoding: d_key, d_value, feature map. Features and values in several slabs and blocks of columns.
DECODED = {"dpfp": (80, 70, DPFP), "favor": (20, 70, ("favor", {"m": 70}))}

# Of recurrences: their name and d. Rows in one round and in two.
RECURRENCES = {f"{name}, {d}": (name, d) for name in ("recur", "recur_lstm") for d in (20, 40)}
RECURRENCES["recur_lstm, 66"] = ("recur_lstm", 66)  # columns in two parts


def libraries() -> tuple[ctypes.CDLL, ...]:
    operators = (kernels, decode_kernels, recurrence_kernels, row_function_kernels)
    return tuple(operator.kernels() for operator in operators)


@dataclass(frozen=True)
class Case:
    """One direction of a call, steps of decoding, or a recurrence or function of rows with its backward."""

    direction: str
    shape: str
    rule: str
    dtype: torch.dtype
    causal: bool = True

    def __str__(self) -> str:
        order = "" if self.causal else "not causal"
        words = (self.direction, self.shape, self.rule, str(self.dtype).removeprefix("torch."), order)
        return ", ".join(filter(None, words))

    @property
    def kernel(self) -> str:
        """The kind of kernel that it is about: its direction, and for the operator the kind of instance."""
        if self.direction not in DIRECTIONS:
            return self.direction
        kind = self.shape.split()[0].rstrip(",")
        single, decays = self.dtype == torch.float32, self.rule in DECAYING
        # Kinds that limits.h does not have for this rule and type are served by the general kernels, long blocks by
        # segments.
        short = (single and decays) or (self.rule == "gated_delta" and self.direction == "backward")
        if self.shape == "plain 128" and short:
            kind = "state"
        elif (kind == "favor" and (single or decays)) or (kind == "plain" and single and decays):
            kind = "general"
        return f"{self.direction} {kind}"

    def run(self) -> None:
        others = {"decode": self._decode, "recurrence": self._recur, "rows": self._map_rows}
        others.get(self.direction, self._call)()

    def _call(self) -> None:
        options = dict(H=1, d_key=8, state=False, limit=kernels.SHARED_MEMORY) | (SHAPES | PIECES)[self.shape]
        T, limit, group, state = options.pop("T"), options.pop("limit"), options.pop("group", None), options["state"]
        output = options.pop("output", True)
        x, phi = make(self.rule, T, T if self.causal else T - 3, dtype=self.dtype, **options)
        pads = torch.zeros(1, x["k"].shape[1], dtype=torch.bool)
        pads[0, :2] = pads[0, -2:] = True
        given = dict(
            rule=self.rule, feature_map=phi, causal=self.causal, normalize_features=True, normalize_output=output,
            key_padding_mask=pads, limit=limit, **x,
        )  # fmt: skip
        if self.direction != "backward":
            multiprocessors = 132 if self.direction == "forward in pieces" else 0
            kernels.forward(return_state=state, multiprocessors=multiprocessors, **given)
        else:
            grad_W, grad_z = (torch.randn_like(x[name]) if state else None for name in ("W", "z"))
            grad_z = grad_z if output else None
            grad_out = torch.randn(*x["q"].shape[:3], x["v"].shape[3]).to(self.dtype)
            kernels.backward(grad_out, grad_W=grad_W, grad_z=grad_z, group=group, **given)

    def _decode(self) -> None:
        """Steps through two folds, and a query that writes nothing."""
        d_key, d_value, feature_map = DECODED[self.shape]
        decoding = make_decoding(self.rule, feature_map, "both", d_key)
        sentence, rows = Sentence(decoding, 40, d_key, d_value, self.dtype), torch.arange(40)[None]
        site = Site(decoding, "shim")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoding_module, "longest_block", lambda *widths: 18)  # more than one tile of positions
            site.steps(sentence, rows, together=5)
        site.read(torch.randn(1, 2, HEADS, d_key), self.dtype)

    def _recur(self) -> None:
        """With pads, initial states and gradients of the last state."""
        name, d = RECURRENCES[self.shape]
        arguments, cotangents = test_recurrence_kernels.case(name, d, mask=True, state=True)
        test_recurrence_kernels.run(recurrence_kernels, name, arguments, cotangents)

    def _map_rows(self) -> None:
        """More rows than warps, time first."""
        x = torch.randn(3, 5, 40).transpose(0, 1)
        g = test_row_function_kernels.cotangent(self.shape, x)
        test_row_function_kernels.found(self.shape, x, g, 0.1, blocks=2)


def cases() -> list[Case]:
    """Every direction, shape, rule, type and order."""
    calls = itertools.product(DIRECTIONS, SHAPES, kernels.RULES, DTYPES, (True, False))
    pieces = itertools.product(("forward in pieces",), PIECES, kernels.RULES, DTYPES)
    pieces = [given for given in pieces if given[1] != "outputs normalised" or not given[2].endswith("delta")]
    steps = itertools.product(("decode",), DECODED, kernels.RULES, DTYPES)
    recurrences = itertools.product(("recurrence",), RECURRENCES, ("delta",), (torch.float32,))
    rows = itertools.product(("rows",), row_function_kernels.FUNCTIONS, ("sum",), (torch.float32,))  # without a rule
    return [Case(*given) for given in (*calls, *pieces, *steps, *recurrences, *rows)]


def fewer_cases() -> list[Case]:
    """Some of them: a kind of kernel meets every rule with every type and every order, a shape each of all choices."""

    def features(case: Case) -> set:
        choices = (case.direction, case.rule, case.dtype, case.causal)
        kinds = {(case.kernel, case.rule, other) for other in (case.dtype, case.causal)}
        return kinds | {(case.shape, choice) for choice in choices}

    return choose(cases(), features)
