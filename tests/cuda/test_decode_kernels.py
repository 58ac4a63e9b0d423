"""Decoding by the CUDA kernels against the reference in float64, every step."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fwp_fairseq import ops
from fwp_fairseq.ops import decoding as decoding_module
from fwp_fairseq.ops.call import DECAYING, GATES, RULES
from tests.cuda import cases
from tests.cuda.cases import DPFP, OPCHECKS, emulated
from tests.maps import MAPS, build_map
from tests.ops import test_decoding as on_a_cpu
from tests.ops.cases import NORMALIZERS
from tests.ops.random_calls import FOLD
from tests.ops.test_decoding import HEADS, Stream, hypotheses, raw_arguments
from tests.pairs import covering
from tests.tolerances import CUDA

pytestmark = [pytest.mark.slow, pytest.mark.needs("native", "cuda")]

SOME_RULES = ("sum", "delta")

# Root of the mean square error relative to that of the output. bfloat16: keys, vectors and outputs are rounded to 8
# bits; what normalises a DPFP key is part of the cached key, which adds a rounding (3.2e-3 is the worst seen, 2.5e-3
# elsewhere).
LIMITS = {torch.float16: CUDA["float16"].values, torch.bfloat16: 3.5e-3, torch.float32: CUDA["float32"].values}


class Sentence(Stream):
    """A stream of tokens that a type holds: for the reference in float64, for the kernels as they are given.

    ``x_dtype`` is the dtype of queries and keys, if it is another one.
    """

    def __init__(self, decoding, tokens, d_key, d_value, dtype, seed=0, x_dtype=None):
        super().__init__(decoding, tokens, d_key, d_value, seed=seed)
        self.dtypes = (x_dtype or dtype,) * 2 + (dtype,)
        self.q, self.k, self.v = (x.to(t).double() for x, t in zip((self.q, self.k, self.v), self.dtypes, strict=True))
        for name in GATES[decoding.rule]:
            setattr(self, name, getattr(self, name).float().double())

    def given(self, rows: Tensor, device: str) -> tuple[Tensor, ...]:
        given = self.inputs(rows)
        gates = (x.to(device, torch.float32) for x in given[3:])
        return (*(x.to(device, t) for x, t in zip(given[:3], self.dtypes, strict=True)), *gates)


def make(rule, feature_map, normalizer="both", d_key=16, eps=1e-6):
    torch.manual_seed(1)
    phi = None if feature_map is None else build_map(feature_map[0], d_key, **feature_map[1]).eval()
    return ops.Decoding(rule, phi, *NORMALIZERS[normalizer], eps=eps, backend="native")


class Site:
    """A decoding that runs on the device."""

    def __init__(self, decoding):
        phi = copy.deepcopy(decoding.feature_map)
        self.decoding = replace(decoding, feature_map=None if phi is None else phi.to("cuda"))
        self.cache = None

    def step(self, sentence, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = None if mask is None else mask.to("cuda")
        given = sentence.given(rows, "cuda")
        out, self.cache = self.decoding.step(self.cache, *given, key_padding_mask=mask)
        return out.cpu()

    def write(self, sentence, rows: Tensor, mask: Tensor | None, readers: Tensor) -> None:
        _, *given = sentence.given(rows, "cuda")
        mask = None if mask is None else mask.to("cuda")
        readers = readers.int().to("cuda")
        self.cache = self.decoding.write(*given, key_padding_mask=mask, rows=readers)

    def read(self, q: Tensor, dtype: torch.dtype) -> Tensor:
        return self.decoding.read(self.cache, q.to("cuda", dtype)).cpu()

    def reorder(self, order: Tensor) -> None:
        self.cache.reorder(order.to("cuda"))

    def steps(self, sentence, rows: Tensor, mask: Tensor | None = None, together: int = 1) -> Tensor:
        cuts = range(0, rows.shape[1], together)
        return torch.cat(
            [
                self.step(sentence, rows[:, t : t + together], None if mask is None else mask[:, t : t + together])
                for t in cuts
            ],
            1,
        )


def assert_near(found: Tensor, expected: Tensor, dtype, looser: float = 1.0) -> None:
    assert found.dtype == dtype
    cases.assert_near({"out": found}, {"out": expected}, (LIMITS[dtype], 0.0), looser)


@pytest.mark.parametrize(
    "rule, dtype",
    [*itertools.product(SOME_RULES, LIMITS), *((rule, torch.float32) for rule in DECAYING)],
    ids=str,
)
def test_every_history_in_one_block(rule, dtype, monkeypatch):
    """0 to 129 positions before the token, none of them folded: more than a block has."""
    monkeypatch.setattr(decoding_module, "longest_block", lambda *widths: 256)
    decoding = make(rule, DPFP, "both", 64)
    sentence, rows = Sentence(decoding, HEADS * 130, 64, 64, dtype), torch.arange(130)[None]
    site = Site(decoding)
    found, expected = site.steps(sentence, rows), sentence.expected(rows)
    assert site.cache.W is None and site.cache.count == 130
    for history in (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129):
        assert_near(found[:, history], expected[:, history], dtype, looser=2)
    assert_near(found, expected, dtype)


@pytest.mark.parametrize("rule, feature_map, normalizer, dtype", covering(RULES, MAPS, NORMALIZERS, LIMITS), ids=str)
def test_maps_and_normalizers_through_two_folds(rule, feature_map, normalizer, dtype):
    d_key, d_value = (7, 5) if dtype == torch.float32 else (20, 10)
    decoding = make(rule, feature_map, normalizer, d_key)
    length = decoding_module.longest_block(decoding.d_dot(torch.empty(d_key)), d_key, d_value) + 35
    sentence, rows = Sentence(decoding, 2 * length, d_key, d_value, dtype), torch.arange(2 * length).view(2, length)
    site = Site(decoding)
    assert_near(site.steps(sentence, rows), sentence.expected(rows), dtype, looser=1.5)  # few numbers, some cancel
    assert site.cache.keys.dtype == dtype and site.cache.W.dtype == torch.float32
    assert site.cache.count < 8 and site.cache.rows.tolist() == [0, 1]


DENSE = {**{f"dpfp-{nu}": ("dpfp", {"nu": nu}) for nu in (1, 2, 3, 5, 8, 9)}, "elu": ("elu", {}), "relu": ("relu", {})}


@pytest.mark.parametrize("rule, name, normalizer, dtype", covering(RULES, DENSE, NORMALIZERS, list(LIMITS)[:2]))
def test_rows_of_64_numbers_through_two_folds(rule, name, normalizer, dtype, monkeypatch):
    """The history comes into shared memory at once, of the widths that most models have; with nu 9 they do not."""
    monkeypatch.setattr(decoding_module, "longest_block", lambda *widths: 70)
    decoding = make(rule, DENSE[name], normalizer, 64)
    sentence, rows = Sentence(decoding, 2 * 105, 64, 64, dtype), torch.arange(210).view(2, 105)
    site = Site(decoding)
    mask = torch.zeros(2, 105, dtype=torch.bool)
    mask[1, 5:9] = mask[0, 80] = True
    out = torch.cat(
        [
            site.steps(sentence, rows[:, :60], mask[:, :60], together=60),
            site.steps(sentence, rows[:, 60:], mask[:, 60:]),
        ],
        1,
    )
    assert_near(out, sentence.expected(rows, mask), dtype, looser=1.5)
    assert site.cache.W is not None and site.cache.count < 8


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("x_dtype", [torch.float16, torch.float32], ids=str)
def test_features_of_another_type_than_values(rule, x_dtype, monkeypatch):
    monkeypatch.setattr(decoding_module, "longest_block", lambda *widths: 40)
    decoding = make(rule, None, "sum", 64)
    sentence = Sentence(decoding, 2 * 60, 64, 64, torch.bfloat16, x_dtype=x_dtype)
    site, rows = Site(decoding), torch.arange(120).view(2, 60)
    found = site.steps(sentence, rows)
    assert site.cache.W is not None and (site.cache.keys.dtype, site.cache.written.dtype) == sentence.dtypes[1:]
    assert_near(found, sentence.expected(rows), torch.bfloat16, looser=1.5)
    for sources in (20, 60):
        site.write(sentence, rows[:1, :sources], None, torch.tensor([0, 0]))
        q = sentence.inputs(rows[:, -1:])[0]
        expected, _ = getattr(ops, f"{rule}_rule")(
            q.flatten(0, 1)[None], *(x[:1, :sources] for x in sentence.inputs(rows)[1:]), causal=False,
            normalize_features=True, normalize_output=False, backend="reference",
        )  # fmt: skip
        assert_near(site.read(q, x_dtype), expected.view(2, 1, *expected.shape[2:]), torch.bfloat16, looser=1.5)


def test_rows_of_64_numbers_that_begin_anywhere():
    """16 bytes at once are copied where their addresses allow it."""
    decoding = make("delta", DPFP, "both", 64)
    sentence, rows = Sentence(decoding, 14, 64, 64, torch.bfloat16), torch.arange(14)[None]
    site = Site(decoding)
    found = [site.steps(sentence, rows[:, :10], together=10)]
    keys = site.cache.keys
    site.cache.keys = keys.new_empty(keys.numel() + 1)[1:].view(keys.shape).copy_(keys)
    found.append(site.steps(sentence, rows[:, 10:]))
    assert_near(torch.cat(found, 1), sentence.expected(rows), torch.bfloat16, looser=1.5)


@pytest.mark.parametrize(
    "d_key, d_value, feature_map",
    [
        (64, 64, ("dpfp", {"nu": 1})),
        (16, 64, ("dpfp", {"nu": 16})),
        (16, 8, ("dpfp", {"nu": 31})),
        (128, 136, ("dpfp", {"nu": 2})),
        (256, 200, ("elu", {})),
        (160, 65, None),
        (64, 64, ("favor", {"m": 128})),
        (80, 8, ("favor", {"m": 35})),
        (1, 1, ("dpfp", {"nu": 1})),
        (40, 8, ("softmax_pair", {})),
    ],
    ids=str,
)
def test_widths(d_key, d_value, feature_map):
    for rule, dtype in (("sum", torch.bfloat16), ("delta", torch.float16), ("delta", torch.float32)):
        decoding = make(rule, feature_map, "both", d_key)
        sentence, rows = Sentence(decoding, 2 * 20, d_key, d_value, dtype), torch.arange(40).view(2, 20)
        site = Site(decoding)
        assert_near(site.steps(sentence, rows, together=19), sentence.expected(rows), dtype, looser=1.5)


@pytest.mark.parametrize(
    "rule, dtype",
    [
        *itertools.product(SOME_RULES, (torch.bfloat16, torch.float32)),
        *((rule, torch.bfloat16) for rule in DECAYING),
    ],
    ids=str,
)
def test_any_reordering(rule, dtype):
    decoding = make(rule, DPFP)
    sentence, site = Sentence(decoding, 700, 16, 8, dtype), Site(decoding)
    for order, rows, compared in hypotheses(80):
        if order is not None:
            site.reorder(order)
        out = site.step(sentence, rows[:, -1:])
        if compared:
            assert_near(out, sentence.expected(rows)[:, -1:], dtype, looser=1.5)
    assert site.cache.W is not None


@pytest.mark.parametrize(
    "rule, feature_map, sources, dtype",
    covering(
        RULES,
        [DPFP, ("elu", {}), ("favor", {"m": 9})],
        [0, 1, 20, 50],
        [torch.float16, torch.bfloat16],
        strength=3,
    ),
    ids=str,
)
def test_sources_are_shared(rule, feature_map, sources, dtype):
    """Nine rows of two sources with pads, 1 and 3 queries; then another order of them. 50 sources are a state."""
    decoding = make(rule, feature_map)
    sentence, written = Sentence(decoding, 200, 16, 8, dtype), torch.arange(2 * sources).view(2, sources)
    mask = torch.rand(2, sources, generator=torch.Generator().manual_seed(3)) < 0.3
    shared = torch.tensor([0, 0, 0, 0, 0, 1, 0, 0, 1])
    for targets in (1, 3):
        site, rows = Site(decoding), shared
        site.write(sentence, written, mask, shared)
        for order in (None, torch.tensor([8, 1, 5, 5])):
            if order is not None:
                site.reorder(order)
                rows = rows[order]
            q = sentence.q[torch.arange(targets * len(rows)).view(targets, len(rows))].transpose(0, 1)
            expected = sentence.expected(written[rows], mask[rows], causal=False, queries=q)
            assert_near(site.read(q, dtype), expected, dtype, looser=1.5)
    assert (site.cache.W is not None) == (sources == 50)


def test_an_overflow():
    on_a_cpu.test_an_overflow_is_no_zero("cuda")


@pytest.mark.parametrize("together, feature_map", [(1, ("elu", {})), (4, DPFP)], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_pads_write_nothing(rule, together, feature_map):
    decoding = make(rule, feature_map)
    sentence, rows = Sentence(decoding, 3 * 20, 16, 8, torch.bfloat16), torch.arange(60).view(3, 20)
    mask = torch.rand(3, 20, generator=torch.Generator().manual_seed(3)) < 0.4
    mask[0, :3] = True
    for x in (sentence.k, sentence.v, *(getattr(sentence, name) for name in GATES[rule])):
        x[rows[mask]] = float("nan")
    found = Site(decoding).steps(sentence, rows, mask, together)
    assert_near(found, sentence.expected(rows, mask), torch.bfloat16, looser=1.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", SOME_RULES)
def test_inputs_of_any_magnitude(rule, dtype):
    """float16 operands must not overflow or vanish: they are scaled by powers of two on the way."""
    for scale in (2.0**-20, 2.0**10) if dtype == torch.bfloat16 else (2.0**-6, 2.0**6):
        decoding = make(rule, DPFP, "both", 16, eps=0.0)
        sentence, rows = Sentence(decoding, 40, 16, 8, dtype), torch.arange(40).view(2, 20)
        for name in ("q", "k"):
            setattr(sentence, name, getattr(sentence, name) * scale)
        sentence.v = sentence.v * (1e5 if dtype == torch.bfloat16 else 1e3)
        sentence.v = sentence.v.to(dtype).double()
        found = Site(decoding).steps(sentence, rows)
        assert_near(found, sentence.expected(rows), dtype, looser=1.5)


@pytest.mark.parametrize("dtype", list(LIMITS), ids=str)
@pytest.mark.parametrize("rule", SOME_RULES)
def test_keys_without_features_read_as_zero(rule, dtype):
    """eps = 0 and nothing written: 0 / 0 is 0. A lone number has no neighbour, so its normaliser is eps alone."""
    for eps, lone in ((0.0, 0.0), (1e-6, 100.0)):
        decoding = make(rule, ("dpfp", {"nu": 1}), "both", 16, eps)
        sentence, rows = Sentence(decoding, 40, 16, 8, dtype), torch.arange(40).view(2, 20)
        sentence.k.zero_()
        sentence.k[..., 5] = lone
        out = Site(decoding).steps(sentence, rows)
        assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.skipif(emulated is None, reason="it would end the process's use of a GPU")
@pytest.mark.parametrize("name, value", [("ancestors", 2), ("ancestors", -1), ("rows", 2)])
def test_a_table_that_leaves_the_storage_stops_the_kernel(name, value):
    decoding = make("delta", DPFP)
    sentence, site = Sentence(decoding, 200, 16, 8, torch.float32), Site(decoding)
    rows = torch.arange(80).view(2, 40)
    site.steps(sentence, rows[:, :39])
    assert site.cache.W is not None or name == "ancestors"
    getattr(site.cache, name)[1] = value
    with pytest.raises(RuntimeError, match="a table names a row outside"):
        site.step(sentence, rows[:, 39:])


def on_device(rule: str, writes: bool, dtype: torch.dtype, /, **changes) -> dict[str, object]:
    """Arguments of ``fwp::decode`` on a GPU."""
    states = ("beta", "alpha", "strengths", "W", "z", "projection")

    def moved(name, x):
        if not isinstance(x, Tensor):
            return x
        return x.cuda() if not x.is_floating_point() else x.to("cuda", torch.float32 if name in states else dtype)

    return {name: moved(name, x) for name, x in raw_arguments(rule, writes).items()} | changes


@pytest.mark.parametrize("rule, writes, dtype, check", covering(RULES, [True, False], LIMITS, OPCHECKS), ids=str)
def test_opcheck(rule, writes, dtype, check):
    arguments = on_device(rule, writes, dtype)
    torch.library.opcheck(torch.ops.fwp.decode.default, tuple(arguments.values()), test_utils=check)
    given = tuple(arguments[name] for name in FOLD)
    torch.library.opcheck(torch.ops.fwp.fold.default, given, test_utils=check)
