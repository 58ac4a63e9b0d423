"""The feature maps with which compiled kernels are tested: name to parameters; None is the identity."""

CUDA_MAPS = [
    None,
    ("elu", {}),
    ("relu", {}),
    ("exp", {"signs": 1}),
    ("dpfp", {"nu": 1}),
    ("dpfp", {"nu": 3}),
    ("favor", {"m": 9}),
]
MAPS = [*CUDA_MAPS, ("softmax_pair", {})]
