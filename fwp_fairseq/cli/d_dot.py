"""Converts between the number of features per head (d_dot) and the parameter of a feature map.

fwp d-dot --feature-map dpfp --d-key 64 --d-dot 256   ->  nu = 2
fwp d-dot --feature-map dpfp --d-key 64 --nu 2        ->  d_dot = 256
fwp d-dot --feature-map favor --m 128                 ->  d_dot = 256
fwp d-dot --feature-map elu                           ->  d_dot = 64
fwp d-dot --table                                     ->  Table 6 of Schlag et al. 2021
"""

import json

from ..feature_maps import FEATURE_MAPS, PARAMETERS, parameter_for, width_for
from .errors import UsageError

TABLE_D_KEY, TABLE_WIDTHS = 64, (256, 384, 512)


def add_arguments(parser) -> None:
    owners = ", ".join(f"{_owner(name)} with --{name}" for name in PARAMETERS)
    parser.add_argument("--feature-map", choices=list(FEATURE_MAPS), help=f"default: {owners}")
    parser.add_argument("--d-key", type=int, default=64, metavar="N", help="width of a head (default: 64)")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--d-dot", type=int, metavar="N", help="number of features wanted")
    for name, text in PARAMETERS.items():
        given.add_argument(f"--{name}", type=int, metavar="N", help=f"{text} of {_owner(name)}")
    given.add_argument("--table", action="store_true", help="print Table 6 of the paper")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _owner(parameter: str) -> str:
    """The first map whose width this parameter sets."""
    return next(name for name, cls in FEATURE_MAPS.items() if parameter in cls.parameters_help)


def _table(as_json: bool) -> None:
    rows = [
        {
            "d_dot": width,
            "favor_m": parameter_for("favor", TABLE_D_KEY, width)["m"],
            "dpfp_nu": parameter_for("dpfp", TABLE_D_KEY, width)["nu"],
        }
        for width in TABLE_WIDTHS
    ]
    if as_json:
        print(json.dumps({"d_key": TABLE_D_KEY, "rows": rows}))
        return
    for label, key in (("d_dot", "d_dot"), ("Performer m", "favor_m"), ("DPFP nu", "dpfp_nu")):
        print(f"{label:<12}" + "".join(f"{row[key]:>6}" for row in rows))


def run(args) -> int:
    if args.table:
        if args.feature_map or args.d_key != TABLE_D_KEY:
            raise UsageError(f"--table is the paper's, for d_key = {TABLE_D_KEY}: drop --feature-map and --d-key")
        _table(args.json)
        return 0
    given = {name: value for name in PARAMETERS if (value := getattr(args, name)) is not None}
    name = args.feature_map or next(map(_owner, given), None)
    if name is None:
        raise UsageError(f"--feature-map is missing, expected one of {', '.join(FEATURE_MAPS)}")
    try:
        d_dot = args.d_dot if args.d_dot is not None else width_for(name, args.d_key, **given)
        parameters = parameter_for(name, args.d_key, d_dot)
    except ValueError as error:
        raise UsageError(error) from None
    result = {"feature_map": name, "d_key": args.d_key, "d_dot": d_dot, **parameters}
    if args.json:
        print(json.dumps(result))
    elif args.d_dot is not None and parameters:
        print("".join(f"{key} = {value}" for key, value in parameters.items()))
    else:
        print(f"d_dot = {d_dot}")
    return 0
