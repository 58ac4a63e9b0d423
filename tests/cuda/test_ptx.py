"""Every kernel as nvcc has made it, on the emulated device: small cases, and that no kernel is left out."""

import pytest
import torch

from fwp_fairseq import ops
from fwp_fairseq.ops import decoding, self_check
from fwp_fairseq.ops.call import CORRECTING, RULES
from tests.cuda import test_recurrence_glue as recurrences
from tests.cuda import test_row_function_glue as row_functions
from tests.cuda.cases import DPFP, compare, emulated, make
from tests.cuda.test_decode_kernels import HEADS, Sentence, Site
from tests.cuda.test_decode_kernels import make as make_decoding

if emulated is None or not emulated.translated():
    pytest.skip("test_emulated_device.py runs these tests", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.needs("native", "cuda")]
CASES = dict(self_check.cases("cuda"))


@pytest.mark.parametrize("name", CASES)
def test_the_check_of_a_first_gpu(name):
    """Both passes of every rule in one chunk and in several, decoding and folding."""
    assert CASES[name]() <= self_check.LIMITS["cuda"]


@pytest.mark.parametrize("feature_map", ["elu", "favor"])
def test_rows(feature_map):
    options = {"m": 8} if feature_map == "favor" else {}
    x, phi = make("gated", 70, 70, dtype=torch.float16, H=1, d_key=8, feature_map=(feature_map, options))
    compare("gated", x, phi, causal=False, normalize_output=True, looser=2)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [20, 50, 100])
@pytest.mark.parametrize("feature_map", [("dpfp", {"nu": 1}), ("dpfp", {"nu": 3}), ("elu", {})], ids=str)
def test_short_sentences(rule, length, feature_map):
    x, phi = make(rule, length, length, dtype=torch.bfloat16, H=1, d_key=16, feature_map=feature_map)
    compare(rule, x, phi, looser=2)


# Forward and backward of a head of 32 and of 256 tokens and 256 features, by all warps. These are instructions of PTX,
# which has moves and conversions of addresses that machine code may lack. For 32 tokens, at most 4500 and 11000 are
# wanted under the sum rule, 7000 and 18000 under the delta rule, and twice as many under the gated ones.
INSTRUCTIONS = {
    32: {"sum": (4210, 10_600), "delta": (6600, 15_300), "gated": (4700, 12_700), "gated_delta": (7000, 16_900)},
    256: {
        "sum": (256_000, 765_000),
        "delta": (426_000, 1_268_000),
        "gated": (326_000, 1_127_000),
        "gated_delta": (496_000, 1_560_000),
    },
}


def instructions(rule, x, **options) -> tuple[int, int]:
    """Counts those that the warps of all heads of a call execute, forward and backward."""
    x = {name: y.cuda().requires_grad_() for name, y in x.items()}
    emulated.executed()
    out, _ = getattr(ops, f"{rule}_rule")(*x.values(), backend="native", **options)
    forward = emulated.executed()
    torch.autograd.grad(out, list(x.values()), torch.ones_like(out))
    return forward, emulated.executed()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", INSTRUCTIONS)
def test_instructions_of_a_head(length, rule, device):
    """None of the kernels grows unnoticed. With one multiprocessor walks are as wide as those of many heads."""
    device(multiprocessors=1)
    x, phi = make(rule, length, length, dtype=torch.bfloat16, H=1, d_key=64, d_value=64)
    normalizer = {"normalize_features": rule in CORRECTING, "normalize_output": rule not in CORRECTING}
    counts = instructions(rule, x, feature_map=phi.cuda(), **normalizer)
    assert all(count <= most for count, most in zip(counts, INSTRUCTIONS[length][rule], strict=True)), counts


@pytest.mark.parametrize(
    "rule, dtype, x_dtype, most",
    [
        ("delta", torch.float16, torch.float16, (6700, 13_100)),
        ("delta", torch.bfloat16, torch.float32, (7100, 13_300)),
        ("gated_delta", torch.float16, torch.float16, (7200, 14_700)),
        ("gated_delta", torch.bfloat16, torch.float32, (7600, 14_900)),
    ],
    ids=str,
)
def test_instructions_of_a_head_of_a_hybrid(rule, dtype, x_dtype, most):
    """32 tokens with 64 features of length 1."""
    x, _ = make(rule, 32, 32, dtype=dtype, H=1, d_key=64, d_value=64)
    x |= {name: torch.nn.functional.normalize(x[name].float().exp(), dim=-1).to(x_dtype) for name in ("q", "k")}
    counts = instructions(rule, x, normalize_features=False)
    assert all(count <= limit for count, limit in zip(counts, most, strict=True)), counts


def test_instructions_of_a_head_with_favor():
    """32 tokens with 256 features, without the matrix products by which PyTorch computes these."""
    x, phi = make("sum", 32, 32, dtype=torch.bfloat16, H=1, d_key=64, d_value=64, feature_map=("favor", {"m": 128}))
    counts = instructions("sum", x, feature_map=phi.cuda(), normalize_output=False)
    assert all(count <= limit for count, limit in zip(counts, (14_900, 26_700), strict=True)), counts


# A decoding step of a head of 64 numbers and 256 features over a history of so many positions, the same.
STEPS = {
    32: {"sum": 5510, "delta": 5760, "gated": 6110, "gated_delta": 6310},
    128: {"sum": 10_250, "delta": 10_800, "gated": 12_400, "gated_delta": 12_950},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("history", STEPS)
def test_instructions_of_a_decoding_step(history, rule, monkeypatch):
    monkeypatch.setattr(decoding, "longest_block", lambda *widths: 2 * history)
    sentence = Sentence(make_decoding(rule, DPFP, "both", 64), HEADS * (history + 1), 64, 64, torch.bfloat16)
    site, rows = Site(sentence.decoding), torch.arange(history + 1)[None]
    site.step(sentence, rows[:, :history])
    emulated.executed()
    site.step(sentence, rows[:, history:])
    count = emulated.executed() / HEADS
    assert count <= STEPS[history][rule], count


@pytest.mark.parametrize("d", [8, 40, 100])
@recurrences.NAMES
def test_recurrences(name, d):
    recurrences.assert_agree(name, recurrences.make(name, d, heads=1), recurrences.PADS, looser=2)


@row_functions.NAMES
def test_row_functions(name):
    x = torch.randn(1, 9, 2, 40)
    row_functions.assert_agree(name, x, row_functions.cotangent(name, x))


def test_no_kernel_is_left_out():
    """The last of this file, in its one process."""
    assert set(emulated.translated()) == set(emulated.translated(started=True))
