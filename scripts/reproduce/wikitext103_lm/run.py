#!/usr/bin/env python3
"""See --help."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    from scripts.reproduce.wikitext103_lm.reproduce import main

    sys.exit(main(sys.argv[1:]))
