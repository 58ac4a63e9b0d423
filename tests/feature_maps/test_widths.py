"""d_dot <-> nu, m; and everything that a builder refuses."""

import pytest
import torch

from fwp_fairseq.feature_maps import FEATURE_MAPS, build_feature_map, parameter_for, width_for


@pytest.mark.parametrize(
    "name, d_key, parameters, d_dot",
    [
        ("elu", 64, {}, 64),
        ("dpfp", 64, {"nu": 2}, 256),  # these three and FAVOR+'s: Schlag et al. 2021, Table 6
        ("dpfp", 64, {"nu": 3}, 384),
        ("dpfp", 64, {"nu": 4}, 512),
        ("dpfp", 3, {"nu": 5}, 30),
        ("favor", 64, {"m": 128}, 256),
        ("favor", 64, {"m": 192}, 384),
        ("favor", 64, {"m": 256}, 512),
        ("favor", 5, {"m": 1}, 2),
        ("t2r", 64, {"n": 32}, 32),
        ("hedgehog", 64, {"n": 32}, 64),
        ("rfa", 64, {"m": 32}, 64),
    ],
)
def test_both_ways(name, d_key, parameters, d_dot):
    assert width_for(name, d_key, **parameters) == d_dot
    assert parameter_for(name, d_key, d_dot) == parameters
    assert build_feature_map(name, d_key, d_dot, heads=1).d_dot == d_dot
    assert build_feature_map(name, d_key, heads=1, **parameters).d_dot == d_dot
    assert build_feature_map(name, d_key, d_dot, heads=1, **parameters).d_dot == d_dot


@pytest.mark.parametrize("name", FEATURE_MAPS)
@pytest.mark.parametrize("d_key", [1, 2, 3, 7, 64])
def test_every_width_is_possible_or_names_possible_ones(name, d_key):
    for d_dot in (*range(1, 40), 64, 127, 128, 129, 8191, 8192, 8193):
        try:
            parameters = parameter_for(name, d_key, d_dot)
        except ValueError as error:
            nearest = [int(word) for word in str(error).partition("nearest possible: ")[2].split(" and ")]
            assert nearest and d_dot not in nearest
            for width in nearest:
                assert width_for(name, d_key, **parameter_for(name, d_key, width)) == width
        else:
            assert width_for(name, d_key, **parameters) == d_dot


@pytest.mark.parametrize(
    "name, d_dot, nearest",
    [("dpfp", 200, "128 and 256"), ("dpfp", 100, "128"), ("dpfp", 10**6, "16256"), ("favor", 255, "254 and 256"),
     ("favor", 1, "2"), ("favor", 0, "2"), ("elu", 65, "64"), ("hedgehog", 7, "6 and 8"),
     ("t2r", 0, "1")],
)  # fmt: skip
def test_impossible_widths_name_the_nearest(name, d_dot, nearest):
    with pytest.raises(ValueError, match=f"d_dot = {d_dot} .* {name} .* d_key = 64; nearest possible: {nearest}$"):
        build_feature_map(name, 64, d_dot)


def test_natural_widths():
    assert [build_feature_map(name, 64).d_dot for name in ("elu", "dpfp", "favor")] == [64, 128, 532]
    assert build_feature_map("favor", 1).d_dot == 2


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        (("tanh", 4), {}, "feature map 'tanh' is unknown, expected one of elu, dpfp, favor, relu"),
        (("elu", 0), {}, "elu feature map: d_key = 0, expected at least 1"),
        (("dpfp", 4), {"nu": 0}, "nu = 0 is outside 1..7"),
        (("dpfp", 4), {"nu": 8}, "nu = 8 is outside 1..7"),
        (("t2r", 4), {"n": 0, "heads": 2}, "n = 0, expected at least 1"),
        (("hedgehog", 4), {"n": 4}, "hedgehog feature map: heads is missing, expected their number"),
        (("elu", 4), {"nu": 1}, "elu feature map has no parameter nu"),
        (("dpfp", 4, 16.0), {}, "d_dot = 16.0, expected a whole number"),
        (("dpfp", 4), {"nu": 2.0}, "nu = 2.0, expected a whole number"),
        (("dpfp", 4, 16), {"nu": 3}, "d_dot = 16 means nu = 2, got nu = 3"),
    ],
    ids=str,
)
def test_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        build_feature_map(*arguments, **options)


def test_input_of_another_width():
    with pytest.raises(ValueError, match="dpfp feature map: last dimension of the input is 5, expected d_key = 4"):
        build_feature_map("dpfp", 4)(torch.zeros(2, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["t2r", "hedgehog", "favor", "rfa"])
def test_maps_of_any_default_type(name, dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        phi = build_feature_map(name, 4, 20, heads=2)  # wider than its input
        phi.reset_parameters()
    finally:
        torch.set_default_dtype(before)
    assert {parameter.dtype for parameter in phi.parameters()} <= {dtype}
    assert phi(torch.randn(2, 3, 4)).isfinite().all()
