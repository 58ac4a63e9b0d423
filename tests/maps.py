"""The feature maps with which compiled kernels are tested: name to parameters; None is the identity."""

ELEMENTWISE = [None, ("elu", {}), ("relu", {}), ("exp", {"signs": 1})]
MAPS = [*ELEMENTWISE, ("dpfp", {"nu": 1}), ("dpfp", {"nu": 3}), ("favor", {"m": 9})]
