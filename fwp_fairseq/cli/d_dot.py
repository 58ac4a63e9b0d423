"""Converts between the number of features per head (d_dot) and the parameter of a feature map.

fwp d-dot --feature-map dpfp --d-key 64 --d-dot 256   ->  nu = 2
fwp d-dot --feature-map dpfp --d-key 64 --nu 2        ->  d_dot = 256
fwp d-dot --feature-map favor --m 128                 ->  d_dot = 256
fwp d-dot --feature-map elu                           ->  d_dot = 64
"""

from ..feature_maps import FEATURE_MAPS, PARAMETERS, parameter_for, width_for
from .errors import UsageError


def add_arguments(parser) -> None:
    owners = ", ".join(f"{_owner(name)} with --{name}" for name in PARAMETERS)
    parser.add_argument("--feature-map", choices=list(FEATURE_MAPS), help=f"default: {owners}")
    parser.add_argument("--d-key", type=int, default=64, metavar="N", help="width of a head (default: 64)")
    width = parser.add_mutually_exclusive_group()
    width.add_argument("--d-dot", type=int, metavar="N", help="number of features per head")
    for name, text in PARAMETERS.items():
        width.add_argument(f"--{name}", type=int, metavar="N", help=f"{text} of {_owner(name)}")


def _owner(parameter: str) -> str:
    """Returns the first map whose width this parameter sets."""
    return next(name for name, cls in FEATURE_MAPS.items() if parameter in cls.parameters_help)


def run(args) -> int:
    chosen = {name: value for name in PARAMETERS if (value := getattr(args, name)) is not None}
    name = args.feature_map or next(map(_owner, chosen), None)
    if name is None:
        raise UsageError(f"--feature-map is missing, expected one of {', '.join(FEATURE_MAPS)}")
    try:
        d_dot = args.d_dot if args.d_dot is not None else width_for(name, args.d_key, **chosen)
        parameters = parameter_for(name, args.d_key, d_dot)
    except ValueError as error:
        raise UsageError(error) from None
    if args.d_dot is not None and parameters:
        print("".join(f"{key} = {value}" for key, value in parameters.items()))
    else:
        print(f"d_dot = {d_dot}")
    return 0
