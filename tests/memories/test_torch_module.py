"""A layer is a torch module: whatever PyTorch does with modules works with every kind of layer, memory and state."""

import copy
import io
import pickle

import pytest
import torch

from fwp_fairseq.layers import FastWeightAttention, FastWeightDecoder
from fwp_fairseq.memories import State
from tests.ops.test_linear_work import check as check_linear
from tests.ops.test_linear_work import rows
from tests.tolerances import assert_close

EMBED, HEADS, BATCH, LENGTH = 12, 2, 2, 8
DELTA = {"update_rule": "delta"}
LAYERS = {
    "elu": {"feature_map": "elu"},
    "dpfp-both": {"normalizer": "both", **DELTA},
    "favor": {"feature_map": "favor", "qk_norm": "l2"},
    "rfa": {"feature_map": "rfa", "update_rule": "gated", "directions": "fixed"},
    "relu": {"feature_map": "relu", "output_norm": "rms"},
    "t2r": {"feature_map": "t2r", "d_dot": 9},
    "hedgehog": {"feature_map": "hedgehog", "d_dot": 8, **DELTA},
    "gated-delta": {"feature_map": "elu", "update_rule": "gated_delta", "beta_range": "0-2"},
    "encoder": {"feature_map": "elu", "causal": False, "passes": "both-ways", **DELTA},
    "cross": {"feature_map": "hedgehog", "causal": False},
    "window": {"feature_map": "hedgehog", "window": 3},
    "window-favor": {"feature_map": "favor", "window": 2, "backend": "chunked"},
    "window-elu": {"feature_map": "elu", "window": 4},
    "recurrent": {"feature_map": "elu", "recurrent": "tanh", **DELTA},
    "rnn": {"feature_map": "elu", "fast_net": "rnn", **DELTA},
    "lstm": {"feature_map": "elu", "fast_net": "lstm", "recurrent": "softmax", **DELTA},
    "mlp": {"feature_map": "hedgehog", "fast_net": "mlp", "fast_net_depth": 2, **DELTA},
    "delta-delta": {"feature_map": "elu", "fast_net": "delta", "output_norm": "rms", **DELTA},
    "fwp1991": {"feature_map": "dpfp", "fast_net": "fwp1991"},
    "conv": {"feature_map": "elu", "conv_size": 4, **DELTA},
    "conv-encoder": {"feature_map": "elu", "causal": False, "passes": "both-ways", "conv_size": 4, **DELTA},
    "conv-window": {"feature_map": "hedgehog", "window": 3, "conv_size": 3},
    "conv-rnn": {"feature_map": "elu", "fast_net": "rnn", "conv_size": 2, **DELTA},
    "conv-recurrent": {"feature_map": "elu", "recurrent": "tanh", "conv_size": 2, **DELTA},
    "conv-fwp1991": {"feature_map": "elu", "fast_net": "fwp1991", "conv_size": 2},
}
CAUSAL = [kind for kind, options in LAYERS.items() if options.get("causal", True)]
every_layer = pytest.mark.parametrize("kind", LAYERS)


def build(kind: str, seed: int = 0) -> FastWeightAttention:
    """What starts at 0 or 1 is random."""
    torch.manual_seed(seed)
    layer = FastWeightAttention("dpfp", EMBED, HEADS, **LAYERS[kind]).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 1 or len(parameter.unique()) <= 2:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def inputs(length: int = LENGTH) -> torch.Tensor:
    return torch.randn(BATCH, length, EMBED, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def results(layer: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """What it computes in training and in evaluation, and the state."""
    found = []
    for training in (True, False):
        out, state = layer.train(training)(x)
        found += [out, *(y for y in state or () if y is not None)]
    return [y.detach() for y in found]


def assert_same(mine: torch.nn.Module, theirs: torch.nn.Module) -> None:
    x = inputs().to(theirs.q_proj.weight.dtype)
    for a, b in zip(results(mine, x), results(theirs, x), strict=True):
        assert torch.equal(a, b)


@every_layer
def test_pickle_and_deepcopy(kind):
    layer = build(kind)
    assert_same(pickle.loads(pickle.dumps(layer)), layer)
    assert_same(copy.deepcopy(layer), layer)


@every_layer
@pytest.mark.parametrize("assign", [False, True])
def test_saved_and_loaded_from_the_meta_device(kind, assign):
    layer, file = build(kind), io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    with torch.device("meta"):
        other = FastWeightAttention("dpfp", EMBED, HEADS, **LAYERS[kind]).double()
        assert other(inputs().to("meta"), key_padding_mask=torch.rand(BATCH, LENGTH) > 0.5)[0].shape == inputs().shape
    if not assign:
        other.to_empty(device="cpu")
        for x in (*other.parameters(), *other.buffers()):
            if x.is_floating_point():
                x.detach().fill_(torch.nan)
    other.load_state_dict(torch.load(file, weights_only=True), assign=assign)
    assert_same(other, layer)


# The modules of which reset_parameters is called, in this order.
ORDERS = {
    "the whole": lambda whole: [whole],
    "parents first": lambda whole: [*whole.modules()],
    "parts first": lambda whole: [*whole.modules()][::-1],
}
WHOLES = {
    **{kind: lambda kind=kind: FastWeightAttention("dpfp", 64, HEADS, **LAYERS[kind]) for kind in LAYERS},
    "decoder": lambda: FastWeightDecoder("gated-delta", 65, embed_dim=64, num_layers=2),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("whole", WHOLES)
def test_all_parameters_are_drawn_anew(whole, order):
    torch.manual_seed(1)
    with torch.device("meta"):
        module = WHOLES[whole]()
    module.to_empty(device="cpu")
    for x in (*module.parameters(), *module.buffers()):
        x.detach().fill_(torch.nan if x.is_floating_point() else -1)
    for part in ORDERS[order](module):
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    for x in (*module.named_parameters(), *module.named_buffers()):
        assert x[1].isfinite().all(), x[0]
    given = torch.arange(65)[None] if whole == "decoder" else torch.randn(BATCH, LENGTH, 64)
    out, _ = module(given)
    assert out.isfinite().all() and (whole != "decoder" or out.abs().max() < 2)  # no token is preferred by much
    fresh = dict(WHOLES[whole]().named_parameters())
    for name, x in module.named_parameters():
        every = tuple(range(x.dim()))
        for over, limit in ((-1 if x.shape[-1] >= 32 else every, 0.5), (every, 0.1 if x.numel() > 1000 else 0.5)):
            found, expected = (z.detach().square().mean(over).sqrt() for z in (x, fresh[name]))
            assert ((found - expected).abs() <= limit * expected).all(), name


@every_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_to_half_precision_and_back(kind, dtype):
    layer, x = build(kind), inputs()
    wanted, before = layer(x)
    for given in (before, None) if kind in CAUSAL else (None,):  # a state of another type is gone on from
        narrow, state = layer.to(dtype)(x.to(dtype), state=given)
        assert narrow.dtype == dtype and {y.dtype for y in state or () if y is not None} <= {torch.float32}
    limit = (0.03 if dtype == torch.bfloat16 else 0.005) * wanted.abs().max()
    assert (narrow.double() - wanted).abs().max() < limit
    assert (layer.double()(x)[0] - wanted).abs().max() < limit


@every_layer
def test_hooks_are_called(kind):
    """Also where learned maps could be multiplied into the projections: with more positions than inputs."""
    layer, called = build(kind), set()
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    for name in names:
        part = layer.get_submodule(name)
        part.register_forward_hook(lambda *_, name=name: called.add(f"forward {name}"))
        part.register_full_backward_hook(lambda *_, name=name: called.add(f"backward {name}"))
    layer(inputs(3 * EMBED).requires_grad_())[0].sum().backward()
    assert called == {f"{way} {name}" for way in ("forward", "backward") for name in names}


@every_layer
def test_backward_hooks_of_every_module_with_parameters_are_called(kind):
    layer, called = build(kind), set()
    holders = {name for name, module in layer.named_modules() if module._parameters}
    for name in holders:
        layer.get_submodule(name).register_full_backward_hook(lambda *_, name=name: called.add(name))
    layer(inputs().requires_grad_())[0].sum().backward()
    assert called == holders


@pytest.mark.slow
@every_layer
def test_the_work_is_linear_in_the_length(kind):
    layer = FastWeightAttention("dpfp", EMBED, HEADS, **LAYERS[kind])
    check_linear(lambda length: layer(rows(length, EMBED))[0])


@pytest.mark.slow
@every_layer
def test_compiles_as_one_graph(kind):
    layer, x = build(kind).eval(), inputs(5)  # loops are unrolled, and a position may be outside of a window
    mask = torch.zeros(BATCH, 5, dtype=torch.bool)
    mask[1, 3] = True
    torch._dynamo.reset()  # the limit of recompilations is that of a line of code, not of a test
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for pads in (None, mask):
        out, _ = layer(x, key_padding_mask=pads)
        real = slice(None) if pads is None else ~pads
        assert_close(compiled(x, key_padding_mask=pads)[0][real], out[real], "model")


@every_layer
@pytest.mark.parametrize("place", ["left", "right", "within"])
@torch.no_grad()
def test_pads_change_nothing(kind, place):
    """Neither what is read at other positions, nor the state, nor what is read from it later."""
    if place == "within" and kind == "conv-encoder":
        pytest.skip("a symmetric convolution reads zeros at pads")
    layer, x = build(kind).eval(), inputs()
    where = {"left": [0, 1, 2], "right": [5, 6, 7], "within": [2, 4, 5]}[place]
    mask = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    mask[0, where] = True
    real = [t for t in range(LENGTH) if t not in where]
    out, state = layer(x, key_padding_mask=mask)
    wanted, alone = layer(x[:1, real])
    assert_close(out[:1, real], wanted, "model")
    if state is None:
        return
    for mine, theirs in zip(state, alone, strict=True):
        assert mine is theirs is None or torch.allclose(mine[:1], theirs)
    if kind in CAUSAL:
        assert_close(layer.step(x[:1, 3], state.select(torch.tensor([0])))[0], layer.step(x[:1, 3], alone)[0], "model")


@every_layer
@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
def test_what_stands_at_pads_reaches_nothing(kind, junk):
    """Neither other positions nor the state nor any gradient."""
    layer, x, mask = build(kind).eval(), inputs(), torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    mask[0, [0, 1, 6]] = mask[1, 7] = True
    found = []
    for content in (0.5, junk):
        leaf = x.masked_fill(mask[..., None], content).requires_grad_()
        out, state = layer(leaf, key_padding_mask=mask)
        loss = out[~mask].square().sum()
        found.append((out[~mask], *(state or ()), *torch.autograd.grad(loss, [leaf, *layer.parameters()])))
    for mine, theirs in zip(*found, strict=True):
        assert mine is theirs is None or torch.allclose(mine, theirs)


@every_layer
@pytest.mark.parametrize("rows", [0, BATCH])
def test_without_positions_every_parameter_has_a_gradient(kind, rows):
    """As processes that train together require, whatever batch each of them has."""
    layer, x = build(kind), inputs(0)[:rows].requires_grad_()
    for state in (None, layer.empty_state(rows, x)) if kind in CAUSAL else (None,):
        out, after = layer(x, state=state)
        for mine, theirs in zip(after or (), state or (), strict=False):
            assert mine is theirs is None or torch.equal(mine, theirs)
        assert all(y.isfinite().all() for y in torch.autograd.grad(out.sum(), [x, *layer.parameters()]))


@pytest.mark.parametrize("kind", CAUSAL)
def test_states_do_not_keep_their_text_in_memory(kind):
    layer, state = build(kind), None
    for x in (inputs(100), inputs(1)):
        state = layer(x, state=state)[1].detach()
        parts = [y for y in state if y is not None]
        memory = {y.untyped_storage().data_ptr(): y.untyped_storage().nbytes() for y in parts}
        assert sum(memory.values()) == sum(y.nbytes for y in parts)


@pytest.mark.parametrize("kind", ["favor", "window-favor", "rfa"])
def test_directions_set_in_inference_mode_train(kind):
    layer = build(kind)
    changes = [lambda: layer.load_state_dict(build(kind).state_dict()), layer.reset_parameters]
    for module in layer.modules():
        if hasattr(module, "set_num_updates"):
            module.redraws = True
            changes.append(lambda module=module: module.set_num_updates(3))
    for change in changes:
        with torch.inference_mode():
            change()
        layer(inputs())[0].sum().backward()


@pytest.mark.parametrize("kind", CAUSAL)
@torch.no_grad()
def test_the_whole_is_its_pieces_and_its_steps(kind):
    layer, x = build(kind).eval(), inputs()
    whole, last = layer(x)
    first, state = layer(x[:, :3])
    file = io.BytesIO()
    torch.save(state, file)  # the state of a text is kept
    file.seek(0)
    state = torch.load(file, weights_only=True)
    second, end = layer(x[:, 3:], state=state)
    again, _ = layer(x[:, 3:], state=tuple(state))
    assert_close(torch.cat([first, second], 1), whole, "model")
    assert torch.equal(again, second) and type(end) is type(state) is layer.State
    state = None
    for t in range(LENGTH):
        out, state = layer.step(x[:, t], state)
        assert_close(out, whole[:, t], "model")
    for states in (end, state):
        for mine, theirs in zip(states, last, strict=True):
            assert mine is theirs is None or torch.allclose(mine, theirs)
    empty = x[:, :0].requires_grad_()
    with torch.enable_grad():
        out, _ = layer(empty, state=last)
        out.sum().backward()
    assert out.shape == empty.grad.shape == (BATCH, 0, EMBED)


@pytest.mark.parametrize("kind", ["elu", "encoder", "window", "rnn", "conv"])
@pytest.mark.parametrize(
    "mask",
    [torch.zeros(BATCH, LENGTH), torch.zeros(BATCH, LENGTH, dtype=torch.int64), torch.tensor([3, 4]), [3, 4],
     torch.zeros(BATCH, 1, dtype=torch.bool), torch.zeros(LENGTH, BATCH, dtype=torch.bool),
     torch.zeros(BATCH, LENGTH, dtype=torch.bool, device="meta")],
    ids=["float", "int", "lengths", "list", "short", "time first", "elsewhere"],
)  # fmt: skip
def test_masks_of_a_wrong_kind(kind, mask):
    with pytest.raises(ValueError, match=r"key_padding_mask is .*, expected torch.bool \(2, 8\), True at padding"):
        build(kind)(inputs(), key_padding_mask=mask)


def wrong_states(layer: FastWeightAttention, state: State):
    """Of another kind, incomplete, of another batch, of another width, and what is no state at all."""
    for other in ("elu", "window-elu", "rnn", "mlp"):
        theirs = build(other).empty_state(BATCH, inputs())
        if type(theirs) is not type(state):
            yield theirs
    yield layer.empty_state(BATCH + 1, inputs())
    yield state._replace(**{state._fields[0]: state[0][..., :-1]})
    yield state._replace(**{state._fields[0]: None})
    yield tuple(state)[:-1]
    yield state[0]
    yield 3


@pytest.mark.parametrize("kind", CAUSAL)
def test_states_of_a_wrong_kind(kind):
    layer = build(kind)
    for wrong in wrong_states(layer, layer(inputs())[1]):
        with pytest.raises(ValueError, match=r"^state.*, expected"):
            layer(inputs(), state=wrong)
