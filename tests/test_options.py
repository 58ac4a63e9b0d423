"""The table of options."""

from fwp_fairseq.feature_maps import FEATURE_MAPS
from fwp_fairseq.memories import FAST_NETS
from fwp_fairseq.ops import RULES
from fwp_fairseq.ops.backends import CHOICES
from fwp_fairseq.options import NORMALIZERS, OPTIONS, SITES, SiteOptions


def test_values_are_those_that_the_code_knows():
    known = {
        "feature_map": {"softmax", *FEATURE_MAPS} - {"identity"},
        "update_rule": set(RULES),
        "normalizer": {"auto", *NORMALIZERS},
        "fast_net": set(FAST_NETS),
        "backend": set(CHOICES),
    }
    for name, values in known.items():
        assert set(OPTIONS[name].values) == values, name
    for option in OPTIONS.values():
        assert option.values is None or option.default in option.values
        assert set(option.sites) <= set(SITES)


def test_a_description_names_what_differs():
    usual = "feature-map=dpfp d-dot=12 update-rule=sum normalizer=attention"
    assert SiteOptions().describe(6) == usual
    assert SiteOptions(backend="chunked", directions="fixed").describe(6) == usual
    softmax = SiteOptions("softmax", positions="rotary", conv_size=4, update_rule="delta", source_window=8)
    assert softmax.describe(6) == "softmax positions=rotary conv-size=4"
    assert SiteOptions("softmax", update_rule="delta").describe(6) == "softmax"
    chosen = SiteOptions("elu", None, "delta", fast_net="mlp", recurrent="tanh", output_norm="rms")
    assert chosen.describe(6) == (
        "feature-map=elu d-dot=6 update-rule=delta normalizer=sum output-norm=rms fast-net=mlp fast-net-depth=1 "
        "recurrent=tanh"
    )
