"""Converts between the number of features per head (d_dot) and the parameter of a feature map.

fwp d-dot --feature-map dpfp --d-key 64 --d-dot 256   ->  nu = 2
fwp d-dot --feature-map dpfp --d-key 64 --nu 2        ->  d_dot = 256
fwp d-dot --feature-map favor --m 128                 ->  d_dot = 256
fwp d-dot --feature-map elu                           ->  d_dot = 64
fwp d-dot --table                                     ->  Table 6 of Schlag et al. 2021
"""

import json

from ..feature_maps import FEATURE_MAPS, parameter_for, width_for
from .errors import UsageError

TABLE_D_KEY, TABLE_WIDTHS = 64, (256, 384, 512)


def add_arguments(parser) -> None:
    parser.add_argument("--feature-map", choices=list(FEATURE_MAPS), help="default: dpfp with --nu, favor with --m")
    parser.add_argument("--d-key", type=int, default=64, metavar="N", help="width of a head (default: 64)")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--d-dot", type=int, metavar="N", help="number of features wanted")
    given.add_argument("--nu", type=int, metavar="N", help="number of offsets of dpfp")
    given.add_argument("--m", type=int, metavar="N", help="number of random directions of favor")
    given.add_argument("--table", action="store_true", help="print Table 6 of the paper")
    parser.add_argument("--json", action="store_true", help="for machines")


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
    name = args.feature_map or ("dpfp" if args.nu is not None else "favor" if args.m is not None else None)
    if name is None:
        raise UsageError(f"--feature-map is missing, expected one of {', '.join(FEATURE_MAPS)}")
    try:
        d_dot = args.d_dot if args.d_dot is not None else width_for(name, args.d_key, nu=args.nu, m=args.m)
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
