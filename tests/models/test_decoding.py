"""Decoding step by step equals the teacher-forced pass, with any attention, padding and beams."""

import pytest
import torch
from fairseq import utils as fairseq_utils

from fwp_fairseq.ops import RULES
from tests.models.helpers import WORDS, build, prefixes, sources, tokens
from tests.pairs import covering
from tests.tolerances import assert_close


@pytest.fixture(autouse=True)
def _softmax_in_float64(monkeypatch):
    """Keeps softmax in float64: fairseq's own attention rounds its weights to float32 in some of its paths."""

    def softmax(x, dim, onnx_trace=False):
        return torch.softmax(x, dim, dtype=x.dtype)

    monkeypatch.setattr(fairseq_utils, "softmax", softmax)


MAPS = {"elu": {}, "dpfp": {"fwp_d_dot": 24}, "favor": {"fwp_d_dot": 16}}
NORMALIZERS = ("auto", "attention", "sum", "both", "none")
MIXES = {
    "all": {},
    "softmax-encoder": {"fwp_encoder": "softmax"},
    "softmax-decoder": {"fwp_decoder": "softmax"},
    "softmax-cross": {"fwp_cross": "softmax"},
    "only-decoder": {"fwp_encoder": "softmax", "fwp_cross": "softmax"},
}
LENGTHS = [7, 4, 1]


def flags(feature_map, rule, normalizer, mix="all"):
    return {
        "fwp_feature_map": feature_map,
        "fwp_update_rule": rule,
        "fwp_normalizer": normalizer,
        **MAPS[feature_map],
        **MIXES[mix],
    }


# By step: each sentence gets two hypotheses; some swap within a sentence, and copies replace others; a finished
# sentence leaves; another sentence gets a third hypothesis.
REORDERINGS = {1: [0, 0, 1, 1, 2, 2], 3: [1, 0, 2, 2, 5, 4], 4: [0, 1, 4, 4], 6: [1, 1, 0, 2, 3]}


@torch.no_grad()
def check_decoding(model, left: bool, reorderings=None) -> None:
    reorderings = REORDERINGS if reorderings is None else reorderings
    src, lengths = sources(LENGTHS, left=left)
    encoded = model.encoder(src, lengths)
    prefix, state = prefixes(3, 1), {}
    for step in range(8):
        if step in reorderings:
            order = torch.tensor(reorderings[step])
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoded = model.encoder.reorder_encoder_out(encoded, order)
            prefix = prefix[order]
        now, _ = model.decoder(prefix, encoder_out=encoded, incremental_state=state)
        assert now.shape == (len(prefix), 1, len(WORDS))
        whole, _ = model.decoder(prefix, encoder_out=encoded)
        assert_close(now[:, 0], whole[:, -1], "model")
        prefix = torch.cat([prefix, tokens(len(prefix), 1, seed=100 + step)], dim=1)


@pytest.mark.parametrize(
    "feature_map, rule, normalizer_and_mix, left",
    covering(
        *(MAPS, RULES, [("auto", mix) for mix in MIXES] + [(normalizer, "all") for normalizer in NORMALIZERS[1:]]),
        [True, False],
    ),
)
def test_equals_the_teacher_forced_pass(feature_map, rule, normalizer_and_mix, left):
    check_decoding(build(**flags(feature_map, rule, *normalizer_and_mix)), left)


@pytest.mark.parametrize("rule", RULES)
def test_any_permutation_of_rows(rule):
    """Fast weights allow any order. With softmax cross-attention, fairseq reorders only within a sentence."""
    check_decoding(build(fwp_update_rule=rule), True, {1: [2, 0, 1], 2: [1, 1, 1], 3: [2, 1, 0], 5: [0]})


@pytest.mark.parametrize(
    "option",
    [
        "encoder_normalize_before",
        "decoder_normalize_before",
        "no_cross_attention",
        "no_token_positional_embeddings",
        "decoder_learned_pos",
        "layernorm_embedding",
    ],
)
def test_variants_of_the_layer(option):
    check_decoding(build(fwp_update_rule="delta", **{option: True}), True)


@torch.no_grad()
@pytest.mark.parametrize("feature_map, rule, mix", covering(MAPS, RULES, ["all", "softmax-encoder", "softmax-cross"]))
def test_padding_changes_nothing(feature_map, rule, mix):
    """A sentence has the same output alone, in a ragged batch, and with many more pads before or behind it."""
    model = build(**flags(feature_map, rule, "auto", mix))
    prefix = prefixes(1, 5)
    alone = []
    for row, length in enumerate(LENGTHS):
        src, lengths = sources([length], seed=row)
        alone.append(model(src, lengths, prefix)[0])
    for width in (7, 19):
        for left in (True, False):
            src, lengths = sources(LENGTHS, width=width, left=left)
            together, _ = model(src, lengths, prefix.expand(3, -1))
            assert_close(together, torch.cat(alone), "model")


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_every_backend_decodes(backend):
    check_decoding(build(fwp_update_rule="gated_delta", fwp_backend=backend), True)
