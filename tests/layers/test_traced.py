"""Layers in graphs that PyTorch traces: exported, by make_fx, and with fake tensors; each first in a process."""

import subprocess
import textwrap

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fwp_fairseq.layers import FastWeightAttention
from tests.memories.test_torch_module import BATCH, CAUSAL, EMBED, HEADS, LAYERS, LENGTH, build, every_layer, inputs

pytestmark = pytest.mark.slow
FIRST = """
    import io, torch
    from torch.fx.experimental.proxy_tensor import make_fx
    from fwp_fairseq.layers import FastWeightAttention

    layer, x = FastWeightAttention("elu", 16, 2).eval(), torch.randn(2, 8, 16)
    {call}
    torch.testing.assert_close(found, layer(x)[0])
"""
CALLS = {
    "export": "found = torch.export.export(layer, (x,)).module()(x)[0]",
    "strict export": "found = torch.export.export(layer, (x,), strict=True).module()(x)[0]",
    "make_fx": "found = make_fx(lambda x: layer(x)[0])(x)(x)",
    "compile": 'found = torch.compile(layer, fullgraph=True, backend="eager")(x)[0]',
}


@pytest.mark.parametrize("call", CALLS)
def test_the_first_call_of_a_process(call, forked_python):
    code = textwrap.dedent(FIRST).format(call=CALLS[call])
    done = subprocess.run([forked_python.program, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Step(torch.nn.Module):
    """A decoding step as a module of its own."""

    def __init__(self, layer: FastWeightAttention):
        super().__init__()
        self.layer = layer

    def forward(self, x, state):
        return self.layer.step(x, state)


@pytest.mark.parametrize("kind", CAUSAL)
@torch.no_grad()
def test_an_exported_step_is_saved_and_opened(kind, tmp_path):
    layer, x = build(kind).eval(), inputs()
    state = layer(x[:, :4])[1]
    torch.export.save(torch.export.export(Step(layer), (x[:, 4], state)), tmp_path / "step.pt2")
    step = torch.export.load(tmp_path / "step.pt2").module()
    for t in range(4, LENGTH):
        (found, after), (wanted, expected) = step(x[:, t], state), layer.step(x[:, t], state)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(tuple(after), tuple(expected))
        state = after


@every_layer
@torch.no_grad()
def test_an_exported_layer_takes_other_batches(kind):
    layer, x = build(kind).eval(), inputs()
    rows = torch.export.Dim("rows", min=2, max=64)
    graph = torch.export.export(layer, (x,), dynamic_shapes={"x": {0: rows}}).module()
    for copies in (1, 5):
        batch = x.repeat(copies, 1, 1)
        (found, state), (wanted, expected) = graph(batch), layer(batch)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(tuple(state or ()), tuple(expected or ()))


@pytest.mark.parametrize("backend", ["auto", "chunked"])
@pytest.mark.parametrize("kind", ["elu", "gated-delta", "conv", "encoder", "cross"])
@torch.no_grad()
def test_an_exported_layer_takes_other_lengths(kind, backend):
    """With every backend, up to the length that matrix products take in one chunk."""
    layer = FastWeightAttention("dpfp", EMBED, HEADS, **(LAYERS[kind] | {"backend": backend})).eval()
    lengths = torch.export.Dim("lengths", min=4, max=128)
    example = torch.randn(BATCH, 9, EMBED)
    graph = torch.export.export(layer, (example,), dynamic_shapes={"x": {1: lengths}}).module()
    for length in (4, 50, 128):
        x = torch.randn(BATCH, length, EMBED)
        torch.testing.assert_close(graph(x)[0], layer(x)[0])


@every_layer
@torch.no_grad()
def test_a_graph_is_right_for_other_pads(kind):
    layer, x = build(kind).eval(), inputs()
    graph = make_fx(lambda x, pads: layer(x, key_padding_mask=pads)[0])(x, torch.zeros(BATCH, LENGTH, dtype=torch.bool))
    pads = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    pads[0, :2] = pads[1, 3] = True
    torch.testing.assert_close(graph(x, pads)[~pads], layer(x, key_padding_mask=pads)[0][~pads])


@every_layer
def test_fake_tensors(kind):
    """A layer made of them, with gradients, pads, steps and new directions; only shapes and types are known."""
    with FakeTensorMode():
        layer = FastWeightAttention("dpfp", EMBED, HEADS, **LAYERS[kind])
        layer.reset_parameters()
        for module in layer.modules():
            if hasattr(module, "set_num_updates"):
                module.set_num_updates(3)
        x, pads = torch.randn(BATCH, LENGTH, EMBED, requires_grad=True), torch.rand(BATCH, LENGTH) > 0.5
        for mask in (None, pads):
            out, state = layer(x, key_padding_mask=mask)
            out.sum().backward()
            for y in (out, x.grad, *(y for y in state or () if y is not None)):
                assert isinstance(y, FakeTensor) and y.dtype == torch.float32
            assert out.shape == x.shape
        if layer.causal:
            assert layer.step(x[:, 0], state)[0].shape == (BATCH, EMBED)
