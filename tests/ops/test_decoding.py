"""Lazy decoding against the reference operator: every step, whatever the order, the blocks and the sources."""

import pytest
import torch

from fwp_fairseq import ops
from fwp_fairseq.feature_maps import build_feature_map
from fwp_fairseq.ops import GATES, RULES
from fwp_fairseq.ops.call import CORRECTING, DECAYING
from fwp_fairseq.ops.decoding import LATER_BLOCK, longest_block
from tests.ops.cases import NORMALIZERS, feature_map
from tests.ops.instruction_sets import chosen, on_each, usable
from tests.pairs import covering
from tests.tolerances import assert_close

pytestmark = pytest.mark.needs("native")

# d_key, d_value: within a vector; with a rest; whole vectors.
WIDTHS = [(3, 5), (19, 21), (32, 64)]
MAPS = ("identity", "elu", "dpfp-1", "dpfp-3", "favor", "softmax_pair")
HEADS = 2


@pytest.fixture(params=usable())
def instructions(request):
    """Each instruction set of this processor."""
    with chosen(request.param):
        yield request.param


def make(rule, map_name="dpfp-3", normalizer="both", d_key=3, eps=1e-6):
    torch.manual_seed(1)
    return ops.Decoding(rule, feature_map(map_name, d_key)[0], *NORMALIZERS[normalizer], eps=eps, backend="native")


class Stream:
    """Tokens, and what the reference operator says about any sequence of them."""

    def __init__(self, decoding, tokens, d_key=3, d_value=5, dtype=torch.float64, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        self.decoding = decoding
        self.q, self.k = 0.7 * normal(tokens, HEADS, d_key), 0.7 * normal(tokens, HEADS, d_key)
        if decoding.feature_map is None:
            self.q, self.k = self.q.abs(), self.k.abs()
        self.v = normal(tokens, HEADS, d_value)
        self.beta = self.alpha = None
        if GATES[decoding.rule]:
            share = 0.05 + 0.9 * normal(tokens, HEADS).sigmoid()
            if decoding.rule == "gated":
                share **= 8  # small enough that writes outlive blocks
            share[::11], share[1::47] = 0, 1
            # The delta rule diverges with wide steps on keys that are not normalised.
            if "beta" in GATES[decoding.rule]:
                self.beta = 0.02 * share if decoding.rule in CORRECTING and not decoding.normalize_features else share
        if "alpha" in GATES[decoding.rule]:
            self.alpha = 1 - share.roll(5, 0) ** 8
            self.alpha[::23] = 0.3

    def inputs(self, rows):
        """q, k, v and strengths of the tokens in rows (R, T), laid out as fairseq has them: views of (T, R, C)."""
        given = (self.q, self.k, self.v, self.beta, self.alpha)
        return [x[rows.T].transpose(0, 1) for x in given if x is not None]

    def expected(self, rows, mask=None, causal=True, queries=None):
        d = self.decoding
        q, *written = self.inputs(rows)
        q = q if queries is None else queries
        out, _ = getattr(ops, f"{d.rule}_rule")(
            q, *written, feature_map=d.feature_map, causal=causal,
            key_padding_mask=mask, normalize_features=d.normalize_features, normalize_output=d.normalize_output,
            eps=d.eps, backend="reference",
        )  # fmt: skip
        return out


def decode(decoding, stream, rows, mask=None, together=1):
    outputs, cache = [], None
    for t in range(0, rows.shape[1], together):
        part = None if mask is None else mask[:, t : t + together]
        out, cache = decoding.step(cache, *stream.inputs(rows[:, t : t + together]), key_padding_mask=part)
        outputs.append(out)
    return torch.cat(outputs, 1), cache


def decodes(decoding, *arguments, **options):
    """:func:`decode` by every instruction set."""
    return list(on_each(lambda: decode(decoding, *arguments, **options)).values())


def assert_decodes(decoding, stream, rows, mask=None, together=1):
    """As the reference operator does; returns a cache that is left."""
    expected = stream.expected(rows, mask)
    found = decodes(decoding, stream, rows, mask, together)
    for out, _ in found:
        assert_close(out, expected, "operator")
    return found[-1][1]


@pytest.mark.parametrize("rule, map_name, normalizer", covering(RULES, MAPS, NORMALIZERS))
def test_every_step_through_two_folds(rule, map_name, normalizer):
    decoding = make(rule, map_name, normalizer)
    stream, rows = Stream(decoding, 3 * 75), torch.arange(3 * 75).view(3, 75)
    cache = assert_decodes(decoding, stream, rows)
    folded = longest_block(decoding.d_dot(stream.k), cache.keys.shape[-1], 5) + LATER_BLOCK
    assert cache.W is not None and cache.count == 75 - folded


@pytest.mark.parametrize("d_key, d_value", WIDTHS)
@pytest.mark.parametrize("map_name", MAPS)
@pytest.mark.parametrize("rule", RULES)
def test_widths_of_the_kernel(rule, map_name, d_key, d_value):
    decoding = make(rule, map_name, "both", d_key)
    stream, rows = Stream(decoding, 2 * 40, d_key, d_value), torch.arange(80).view(2, 40)
    assert_decodes(decoding, stream, rows)


@pytest.mark.parametrize("together", [3, 50, 150])
@pytest.mark.parametrize("rule", RULES)
def test_several_tokens_at_once(rule, together):
    decoding = make(rule)
    stream, rows = Stream(decoding, 2 * 150), torch.arange(300).view(2, 150)
    assert_decodes(decoding, stream, rows, together=together)


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("normalizer", ["attention", "both"])
@pytest.mark.parametrize("rule", RULES)
def test_pads_write_nothing(rule, normalizer, together):
    decoding = make(rule, normalizer=normalizer)
    stream, rows = Stream(decoding, 3 * 40), torch.arange(120).view(3, 40)
    mask = torch.rand(3, 40) < 0.4
    mask[0, :3] = True
    for x in (stream.k, stream.v, *(x for x in (stream.beta, stream.alpha) if x is not None)):
        x[rows[mask]] = float("nan")
    assert_decodes(decoding, stream, rows, mask, together)


def hypotheses(steps: int):
    """Rows swap, multiply, leave and come back, within blocks and across folds; each keeps the history it was given.

    Yields, a step each, their new order, if any, their tokens, and whether to compare what they read.
    """
    generator = torch.Generator().manual_seed(5)
    rows, fresh = torch.empty(4, 0, dtype=torch.long), 0
    for step in range(steps):
        order = None
        if step and step % 3 != 2:
            count = {20: 7, 40: 3, 60: 2, 75: 6}.get(step, len(rows))
            order = torch.randint(len(rows), (count,), generator=generator)
            rows = rows[order]
        rows = torch.cat([rows, fresh + torch.arange(len(rows))[:, None]], 1)
        fresh += len(rows)
        yield order, rows, step % 9 == 0 or step == steps - 1


@pytest.mark.parametrize("rule", RULES)
def test_any_reordering(rule, instructions):
    decoding, cache = make(rule), None
    stream = Stream(decoding, 1000)
    for order, rows, compared in hypotheses(110):
        if order is not None:
            cache.reorder(order)
        out, cache = decoding.step(cache, *stream.inputs(rows[:, -1:]))
        if compared:
            assert_close(out, stream.expected(rows)[:, -1:], "operator")


@pytest.mark.parametrize(
    "rule, map_name, sizes", covering(RULES, MAPS, [(0, 3, 5), (20, 3, 5), (20, 32, 64), (50, 3, 5)]), ids=str
)
def test_sources_are_shared(rule, map_name, sizes, instructions):
    """Rows 0, 0, 0, 0, 0, 1, 0, 0, 1 of two sources with pads, 1 and 3 queries; then another order of them."""
    sources, d_key, d_value = sizes
    decoding = make(rule, map_name, d_key=d_key)
    stream, written = Stream(decoding, 200, d_key, d_value), torch.arange(2 * sources).view(2, sources)
    mask = torch.rand(2, sources) < 0.3
    shared = torch.tensor([0, 0, 0, 0, 0, 1, 0, 0, 1])
    _, *given = stream.inputs(written)
    for targets in (1, 3):
        cache, rows = decoding.write(*given, key_padding_mask=mask, rows=shared.int()), shared
        for order in (None, torch.tensor([8, 1, 5, 5]), torch.tensor([1, 1, 0, 2, 3, 3])):
            if order is not None:
                cache.reorder(order)
                rows = rows[order]
            queries = stream.q[torch.arange(targets * len(rows)).view(targets, len(rows))].transpose(0, 1)
            expected = stream.expected(written[rows], mask[rows], causal=False, queries=queries)
            assert_close(decoding.read(cache, queries), expected, "operator")


@pytest.mark.parametrize("rule", RULES)
def test_memory_is_bounded(rule):
    decoding = make(rule)
    stream, rows = Stream(decoding, 600), torch.arange(600).view(2, 300)
    size_of_state = 2 * HEADS * 18 * (5 + 1)
    size_of_block = LATER_BLOCK * 2 * (HEADS * (3 + 5 + 1) + 1) + 2
    for length in (100, 300):
        _, cache = decode(decoding, stream, rows[:, :length], together=50)
        size = sum(x.numel() for x in vars(cache).values() if isinstance(x, torch.Tensor))
        assert size <= size_of_state + size_of_block


@pytest.mark.parametrize("map_name, rule, d_key", covering(["elu", "dpfp-3", "favor"], RULES, [16, 64]))
def test_precision_of_float32(map_name, d_key, rule):
    decoding = make(rule, map_name, d_key=d_key)
    stream, rows = Stream(decoding, 2 * 70, d_key, 16), torch.arange(140).view(2, 70)
    expected = stream.expected(rows)
    for name in ("q", "k", "v", "beta", "alpha"):
        x = getattr(stream, name)
        setattr(stream, name, None if x is None else x.float())
    for out, _ in decodes(decoding, stream, rows):
        assert_close(out, expected, "float32")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_summed_in_float32(dtype):
    decoding = make("delta", d_key=16)
    stream, rows = Stream(decoding, 2 * 60, 16, 16), torch.arange(120).view(2, 60)
    for name in ("q", "k", "v", "beta"):
        setattr(stream, name, getattr(stream, name).to(dtype))
    out, cache = decode(decoding, stream, rows)
    assert out.dtype == dtype and cache.keys.dtype == cache.W.dtype == torch.float32
    for name in ("q", "k", "v", "beta"):
        setattr(stream, name, getattr(stream, name).double())
    assert_close(out.double(), stream.expected(rows), str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("rule", RULES)
def test_nothing_written_reads_as_zero(rule):
    """eps = 0 and keys that hold nothing: the quotient 0 / 0 is 0."""
    decoding = make(rule, "dpfp-1", "both", eps=0.0)
    stream, rows = Stream(decoding, 2 * 5), torch.arange(10).view(2, 5)
    stream.k.zero_()
    out, _ = decode(decoding, stream, rows)
    assert torch.equal(out, torch.zeros_like(out))


def test_an_overflow_is_no_zero(device="cpu"):
    """A denominator that is infinite gives NaN, as the operators do."""
    q = torch.full((1, 1, HEADS, 3), 1e20, device=device)
    out, _ = ops.Decoding("sum", build_feature_map("elu", 3), False, True, backend="native").step(
        None, q, q, torch.ones_like(q)
    )
    assert out.isnan().all()
    # DPFP's keys are kept, and divided, before phi.
    decoding, q = ops.Decoding("sum", build_feature_map("dpfp", 3), True, False, backend="native"), q.repeat(1, 2, 1, 1)
    assert decoding.step(None, q, q, torch.ones_like(q))[0][:, 1].isnan().all()
    q[:, 1] = 1
    assert decoding.step(None, q, q, torch.ones_like(q))[0][:, 1].isnan().all()


def test_no_rows():
    decoding = make("delta")
    out, cache = decoding.step(None, *Stream(decoding, 4).inputs(torch.empty(0, 1, dtype=torch.long)))
    assert out.shape == (0, 1, HEADS, 5) and cache.count == 1


def test_a_map_that_the_kernels_do_not_know_is_refused():
    class Square(type(build_feature_map("elu", 3))):
        def features(self, x):
            return x.square()

    k = torch.rand(2, 1, HEADS, 3)
    with pytest.raises(NotImplementedError, match="does not know the feature map Square"):
        ops.Decoding("sum", Square(3), False, True, backend="native").serves(k)
    assert not ops.Decoding("sum", Square(3), False, True).serves(k)


def raw_arguments(rule="gated", writes=True, state=True, **changes):
    """(arguments of fwp::decode) in a dict, in the operator's order."""
    x = torch.rand(2, 1, HEADS, 3, dtype=torch.float64)
    arguments = dict(
        q=x, k=x if writes else None, v=x if writes else None,
        beta=x[..., 0] if writes and "beta" in GATES[rule] else None,
        alpha=x[..., 1] if writes and "alpha" in GATES[rule] else None, key_padding_mask=None,
        keys=torch.rand(5, 2, HEADS, 3, dtype=torch.float64), written=torch.rand(5, 2, HEADS, 3, dtype=torch.float64),
        strengths=torch.rand(5, 2, HEADS, dtype=torch.float64) if rule in DECAYING else None,
        ancestors=torch.zeros(2, 5, dtype=torch.int32), rows=torch.zeros(2, dtype=torch.int32),
        W=torch.rand(2, HEADS, 3, 3, dtype=torch.float64) if state else None,
        z=torch.rand(2, HEADS, 3, dtype=torch.float64) if state else None,
        projection=None, count=3, rule=rule, feature_map="elu", d_dot=3, normalize_features=True,
        normalize_output=True, eps=1e-6,
    )  # fmt: skip
    assert changes.keys() <= arguments.keys()
    return arguments | changes


@pytest.mark.parametrize("name, table", [("ancestors", torch.full((2, 5), 2)), ("rows", torch.tensor([0, -1]))])
def test_a_table_that_leaves_the_storage_is_refused(name, table):
    with pytest.raises(IndexError, match=f"{name} names a row outside of 0 .. 1"):
        torch.ops.fwp.decode(*raw_arguments(**{name: table.int()}).values())
