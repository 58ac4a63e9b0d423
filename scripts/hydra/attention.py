"""Writes scripts/hydra/attention/ROW.yaml for every row of the sweep, and the names of all rows into its configuration.

python -m scripts.hydra.attention
"""

from __future__ import annotations

import re
from pathlib import Path

from fwp_fairseq.files import write_atomically
from scripts.results.rows import ROWS, Row

FOLDER = Path(__file__).resolve().parent
SWEEP = FOLDER / "wmt14_bleu_vs_d_dot.yaml"


def _text(row: Row) -> str:
    # Softmax attention does not use these flags. They are written all the same: otherwise a configuration that replaces
    # another attention would keep that one's values.
    flags = {"--fwp-d-dot": "null", "--fwp-update-rule": "sum", "--fwp-normalizer": "auto"}
    flags = {flag: flags.get(flag) if value is None else value for flag, value in row.flags.items()}
    lines = [f"{flag.removeprefix('--').replace('-', '_')}: {value}" for flag, value in flags.items()]
    return "\n".join(["# @package model", *lines, ""])


def files() -> dict[Path, str]:
    """Returns the paths and the contents of the files to write."""
    names = ",".join(row.name for row in ROWS)
    found = {FOLDER / "attention" / f"{row.name}.yaml": _text(row) for row in ROWS}
    return found | {SWEEP: re.sub(r"^( +attention: )\S+,\S+$", rf"\g<1>{names}", SWEEP.read_text(), flags=re.M)}


if __name__ == "__main__":
    for path, text in files().items():
        write_atomically(path, text)
