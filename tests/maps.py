"""The feature maps that compiled kernels are tested with, by name and parameters; None is the identity."""

MAPS = [None, ("elu", {}), ("relu", {}), ("dpfp", {"nu": 1}), ("dpfp", {"nu": 3}), ("favor", {"m": 9})]
