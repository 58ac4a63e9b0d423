"""PyTorch's tools that change parameters by hooks of the module that holds them work with every module of a layer."""

import copy
import tempfile

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import parametrizations, parametrize, prune

from fwp_fairseq.feature_maps import FEATURE_MAPS, build_feature_map
from fwp_fairseq.layers import FastWeightAttention, FastWeightDecoder, SoftmaxAttention
from fwp_fairseq.memories import MEMORIES
from tests.memories.test_torch_module import EMBED, HEADS, LAYERS, build, every_layer, inputs


def pruned(module, name):
    prune.random_unstructured(module, name, 0.5)


def weight_norm(module, name):
    parametrizations.weight_norm(module, name, dim=None)


# The two ways of changing a parameter: a hook before each call, and a property in the parameter's place.
TOOLS = {tool.__name__: tool for tool in (pruned, weight_norm)}


@every_layer
@pytest.mark.parametrize("tool", TOOLS)
def test_tools_that_change_parameters(kind, tool):
    torch.manual_seed(1)
    layer, x, changed = build(kind), inputs(), []
    for path, module in [*layer.named_modules()]:
        for name, _ in [*module.named_parameters(recurse=False)]:
            TOOLS[tool](module, name)
            changed.append((path, name))
    assert changed
    layer.eval()
    for _ in range(2):  # a tensor that a hook made in the first call would have no graph any more
        out, _ = layer(x)
        out.sum().backward()
    plain = build(kind).eval()
    with torch.no_grad():
        for path, name in changed:
            getattr(plain.get_submodule(path), name).copy_(getattr(layer.get_submodule(path), name))
    torch.testing.assert_close(plain(x)[0], out)
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
    if layer.causal:
        torch.testing.assert_close(layer.step(x[:, 0])[0], plain.step(x[:, 0])[0])
    elif layer.options.passes == "one":
        state = layer(x)[1]
        torch.testing.assert_close(layer.read(x, state), plain.read(x, state))


@pytest.fixture(scope="module")
def group():
    """A process group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        torch.distributed.destroy_process_group()


# Whose parameters are gathered together: those of a module and of its parts that are not listed.
UNITS = {
    "every module": lambda layer: [*layer.modules()][:0:-1],
    "memory": lambda layer: [layer.memory],
}


def sharded(module, units, mesh):
    for unit in [*units, module]:
        if not isinstance(unit, nn.ModuleList):
            fully_shard(unit, mesh=mesh)
    return module


def same_gradients(mine, theirs):
    expected = dict(theirs.named_parameters())
    for name, parameter in mine.named_parameters():
        assert isinstance(parameter, DTensor)
        torch.testing.assert_close(parameter.grad.full_tensor(), expected[name].grad, msg=name)


@every_layer
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")
@pytest.mark.parametrize("units", UNITS)
def test_fsdp(kind, units, group):
    whole, x = build(kind), inputs()
    layer = build(kind)
    sharded(layer, UNITS[units](layer), group)
    assert isinstance(layer, FSDPModule)
    for _ in range(2):
        outputs = [part(x) for part in (layer, whole)]
        (out, state), (wanted, _) = outputs
        assert torch.equal(out, wanted)
        for y, _ in outputs:
            y.square().sum().backward()
    same_gradients(layer, whole)
    with torch.no_grad():
        if layer.causal:
            assert torch.equal(layer.step(x[:, 0], state)[0], whole.step(x[:, 0], state)[0])
        elif state is not None:
            assert torch.equal(layer.read(x, state), whole.read(x, state))


@every_layer
@pytest.mark.filterwarnings("ignore:DTensor random operators")
def test_fsdp_from_the_meta_device(kind, group):
    """The order that torch documents: shard, then allocate, then initialise."""
    with torch.device("meta"):
        layer = FastWeightAttention("dpfp", EMBED, HEADS, **LAYERS[kind]).double()
    sharded(layer, [], group)
    layer.to_empty(device="cpu")
    torch.manual_seed(3)
    layer.reset_parameters()
    plain = build(kind)
    torch.manual_seed(3)
    plain.reset_parameters()
    for (name, parameter), wanted in zip(layer.named_parameters(), plain.parameters(), strict=True):
        found = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        assert torch.equal(found, wanted), name


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")
def test_fsdp_of_a_layer_that_reads(group):
    whole = SoftmaxAttention(12, 2, causal=False)
    layer = copy.deepcopy(whole)
    sharded(layer, [], group)
    model, x = nn.Sequential(layer), torch.randn(2, 3, 12)
    fully_shard(model, mesh=group)  # a layer that is no root is gathered for its calls alone
    state = model(x)[1]
    assert torch.equal(layer.read(x, state), whole.read(x, whole(x)[1]))


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")
def test_fsdp_of_a_decoder(group):
    torch.manual_seed(1)
    whole = FastWeightDecoder("gated", 11, embed_dim=12, num_heads=2, num_layers=2, feature_map="hedgehog")
    layer = copy.deepcopy(whole)
    sharded(layer, UNITS["every module"](layer), group)
    tokens = torch.randint(11, (2, 6))
    for model in (layer, whole):
        model(tokens)[0].square().sum().backward()
    same_gradients(layer, whole)
    assert torch.equal(layer.step(tokens[:, 0])[0], whole.step(tokens[:, 0])[0])


def test_sharding_and_parametrizations_keep_the_promises_of_maps(group):
    """They make subclasses, which compute the same; other subclasses have to say what holds of them."""
    for name in FEATURE_MAPS:
        phi, other = (build_feature_map(name, 4, heads=2) for _ in range(2))
        fully_shard(phi, mesh=group)
        for parameter, _ in [*other.named_parameters(recurse=False)]:
            parametrize.register_parametrization(other, parameter, nn.Identity())
        for found in (phi, other):
            for promise in ("kernel", "homogeneity", "non_negative"):
                assert getattr(found, promise) == getattr(FEATURE_MAPS[name], promise)


def test_every_class_that_holds_a_parameter_is_among_the_kinds():
    modules = [module for kind in LAYERS for module in build(kind).modules()]
    holders = {type(module).__name__ for module in modules if module._parameters}
    assert holders >= {"Linear", "T2r", "Hedgehog", "Rfa", "Window", "Feedback", "Decay", "WideLayerNorm"}
    assert holders >= {"QueryKeyNorm", "HeadNorm"}
    assert {type(module) for module in modules} >= {memory for memory in MEMORIES if not memory.__subclasses__()}
