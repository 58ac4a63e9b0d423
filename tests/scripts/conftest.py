import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# `scripts` is no installed package: it is found from the repository root only.
sys.path.insert(0, str(ROOT))
