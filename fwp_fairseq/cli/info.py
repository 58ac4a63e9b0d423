"""Reports what is installed and built, and which backend serves which operator, with reasons.

With --state-size, how much a language model keeps of a text (Schlag et al. 2021, Appendix F):

  fwp info --state-size fwp_lm_wikitext103_medium --fwp-update-rule delta
  fwp info --state-size transformer_xl --n-layer 16 --d-model 256 --mem-len 384 --tokens-per-sample 384
"""

import argparse
import json


def add_arguments(parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--state-size",
        nargs=argparse.REMAINDER,
        metavar="ARCH",
        help="the last flag, followed by a language model's architecture, or transformer_xl, and its flags",
    )


def run(args) -> int:
    if args.state_size is not None:
        from .state_size import collect, text

        found = collect(args.state_size)
    else:
        from ..info import collect, text

        found = collect()
    print(json.dumps(found, indent=2) if args.json else text(found))
    return 0
