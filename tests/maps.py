"""The feature maps with which compiled kernels are tested: name to parameters; None is the identity."""

from fwp_fairseq.feature_maps import build_feature_map
from fwp_fairseq.feature_maps.softmax_pair import SoftmaxPair

MAPS = [
    None,
    ("elu", {}),
    ("relu", {}),
    ("dpfp", {"nu": 1}),
    ("dpfp", {"nu": 3}),
    ("favor", {"m": 9}),
    ("softmax_pair", {}),
]


def build_map(name: str, d_key: int, **parameters):
    """The map of this name in the compiled library; of some of them no flag knows."""
    return SoftmaxPair(d_key) if name == "softmax_pair" else build_feature_map(name, d_key, **parameters)
