"""Reports what is installed and built, and which backend serves which operator, with reasons."""

import json


def add_arguments(parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args) -> int:
    from ..info import collect, text

    found = collect()
    print(json.dumps(found, indent=2) if args.json else text(found))
    return 0
