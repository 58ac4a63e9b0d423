"""Feature maps phi: R^d_key -> R^d_dot. To add one, write its file and add its class to ``FEATURE_MAPS``."""

from .dpfp import Dpfp
from .elu import Elu
from .favor import Favor
from .feature_map import FeatureMap, check_whole
from .hedgehog import Hedgehog
from .identity import Identity
from .learned import LearnedMap
from .random_features import RandomFeatures
from .relu import Relu
from .rfa import Rfa
from .t2r import T2r

FEATURE_MAPS: dict[str, type[FeatureMap]] = {
    cls.name: cls for cls in (Elu, Dpfp, Favor, Relu, T2r, Hedgehog, Rfa, Identity)
}

# The parameters that set the width of a map (nu, m, ...), with their help texts.
PARAMETERS: dict[str, str] = {}
for _map in FEATURE_MAPS.values():
    PARAMETERS |= _map.parameters_help

__all__ = [
    "FEATURE_MAPS",
    "PARAMETERS",
    "FeatureMap",
    "LearnedMap",
    "RandomFeatures",
    "build_feature_map",
    "parameter_for",
    "width_for",
]


def _find(name: str, d_key: int) -> type[FeatureMap]:
    if name not in FEATURE_MAPS:
        raise ValueError(f"feature map {name!r} is unknown, expected one of {', '.join(FEATURE_MAPS)}")
    if d_key < 1:
        raise ValueError(f"{name} feature map: d_key = {d_key}, expected at least 1")
    return FEATURE_MAPS[name]


def _chosen(cls: type[FeatureMap], **parameters: int | None) -> dict[str, int]:
    """Returns the parameters that are not None; raises ValueError for one that the map does not have."""
    chosen = {key: value for key, value in parameters.items() if value is not None}
    for key, value in chosen.items():
        if key not in cls.parameters_help:
            raise ValueError(f"{cls.name} feature map has no parameter {key} (got {key} = {value})")
    return chosen


def width_for(name: str, d_key: int, **parameters: int | None) -> int:
    """Returns d_dot of a map with this parameter (``nu``, ``m``, ...), or its natural width if none is given.

    Raises ValueError for an unknown map, a parameter that the map does not have, or one out of range.
    """
    cls = _find(name, d_key)
    return cls.width_for(d_key, **(_chosen(cls, **parameters) or cls.natural_parameters(d_key)))


def parameter_for(name: str, d_key: int, d_dot: int) -> dict[str, int]:
    """Returns the parameter that gives the map this width: ``{"nu": 2}``, ``{"m": 128}`` or ``{}``.

    Raises ValueError if there is none; the message names the nearest possible widths.
    """
    check_whole("d_dot", d_dot)
    cls = _find(name, d_key)
    parameters = cls.parameters_for(d_key, d_dot)
    if parameters is None:
        nearest = " and ".join(str(width) for width in cls.nearest_widths(d_key, d_dot))
        raise ValueError(
            f"d_dot = {d_dot} is impossible for the {name} feature map with d_key = {d_key}; "
            f"nearest possible: {nearest}"
        )
    return parameters


def build_feature_map(
    name: str, d_key: int, d_dot: int | None = None, *, heads: int | None = None, **parameters: int | None
) -> FeatureMap:
    """Builds a feature map from its width or its parameter, or with its natural width if neither is given.

    Args:
        name: a key of ``FEATURE_MAPS``.
        d_key: width of queries and keys per head.
        d_dot: number of features.
        heads: number of heads; needed only by maps with parameters per head.
        parameters: the map's parameter (DPFP: ``nu``, d_dot = 2 nu d_key; FAVOR+ and RFA: ``m``, d_dot = 2m; learned
            maps: ``n``).

    Raises:
        ValueError: the map is unknown, the width is impossible (the message names the nearest possible ones), the map
            does not have the parameter, width and parameter contradict each other, or ``heads`` is missing.
    """
    cls = _find(name, d_key)
    parameters = _chosen(cls, **parameters)
    if d_dot is not None:
        derived = parameter_for(name, d_key, d_dot)
        for key, value in parameters.items():
            if derived[key] != value:
                raise ValueError(
                    f"{name} feature map: d_dot = {d_dot} means {key} = {derived[key]}, got {key} = {value}"
                )
        parameters = derived
    if cls.per_head and heads is None:
        raise ValueError(f"{name} feature map: heads is missing, expected their number")
    per_head = {"heads": heads} if cls.per_head else {}
    return cls(d_key, **(parameters or cls.natural_parameters(d_key)), **per_head)
