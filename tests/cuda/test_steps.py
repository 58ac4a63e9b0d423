"""A model's decoding step on a device: it neither waits for it nor copies to or from it, as graphs need it."""

import pytest
import torch

from tests.cuda.cases import emulated
from tests.models.helpers import WORDS, build, sources
from tests.models.test_shared_source import MODELS, check_steps

pytestmark = [pytest.mark.slow, pytest.mark.needs("native", "cuda")]


def _model(flags: dict):
    return build(encoder_embed_dim=32, **flags).float().to("cuda")


@torch.no_grad()
@pytest.mark.parametrize("flags", MODELS.values(), ids=MODELS)
def test_no_step_reads_a_value_back_to_the_host(flags):
    check_steps(_model(flags), "cuda")


@torch.no_grad()
@pytest.mark.parametrize("flags", MODELS.values(), ids=MODELS)
def test_a_captured_step_is_the_step(flags):
    """The second step of a search. An emulated device has no graphs: there the step runs as it is."""
    model = _model(flags)
    encoded = model.encoder(*(x.to("cuda") for x in sources([7, 4])))
    prefix = torch.tensor([[WORDS.eos(), 7], [WORDS.eos(), 8]]).to("cuda")

    def second(run) -> torch.Tensor:
        state: dict = {}
        model.decoder(prefix[:, :1], encoder_out=encoded, incremental_state=state)
        return run(lambda: model.decoder(prefix, encoder_out=encoded, incremental_state=state)[0])

    def captured(step) -> torch.Tensor:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        graph.replay()
        return out

    expected = second(lambda step: step())
    assert expected.isfinite().all()
    if emulated is None:
        assert torch.equal(second(captured), expected)
