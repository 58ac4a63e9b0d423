"""Golden losses: trains and translates by fixed seeds, and compares every digit with what another checkout computes.

Each case trains a small model for 20 updates with `fairseq-train`, translates with `fairseq-generate`, and keeps the
losses, the norms of the gradients, the validation loss and the translations with their scores, none of them rounded. A
change that should not alter what is computed leaves losses and norms the same to the last digit, the translations the
same and their scores within 1e-6. Each checkout has a `.venv` in its folder:

    python -m scripts.golden ../before                       # 8 minutes on one core
    python -m scripts.golden ../before --cases elu hybrid
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from fwp_fairseq.kinds import HYBRID, KINDS, Attention
from fwp_fairseq.options import OPTIONS, TRANSLATION_SITES
from scripts.common.commands import site_flags, words_of
from scripts.data import multi30k

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("golden_worker.py")
LINES = {"train": 1500, "valid": 40, "test": 20}
# Two checkouts may add in another order.
SCORES_WITHIN = 1e-6
ARCH = ["--arch", "fwp_transformer_tiny"]
TRAINING = [
    *("--optimizer", "adam", "--lr", "3e-3", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "10"),
    *("--max-tokens", "500", "--max-update", "20", "--log-format", "json", "--log-interval", "1"),
    *("--no-epoch-checkpoints", "--cpu", "--seed", "1", "--num-workers", "0"),
]
TRANSLATION = ["--task", "translation", "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]


def _case(kind: str) -> dict[str, str]:
    """Returns a kind at all sites that can have it, and softmax attention at the others."""
    options = Attention.parse(kind).options()
    chosen = [name for name, option in OPTIONS.items() if getattr(options, name) != option.default]
    return {
        site: kind if all(site in OPTIONS[name].sites for name in chosen) else "softmax" for site in TRANSLATION_SITES
    }


# Name to the kind of attention at each site.
CASES = {kind: _case(kind) for kind in (*KINDS, "dpfp,update-rule=delta")} | {"hybrid": HYBRID}


def flags(case: str, checkout: Path) -> list[str]:
    """Returns the attention flags of a case; checkouts before kinds had names have a flag for each option of a site."""
    if (checkout / "fwp_fairseq/kinds.py").exists():
        return words_of(site_flags(CASES[case]))
    words = []
    for site, kind in CASES[case].items():
        values = vars(Attention.parse(kind).options())
        names = ["feature_map", *(n for n, option in OPTIONS.items() if values[n] != option.default)]
        words += [w for n in dict.fromkeys(names) for w in (f"--fwp-{site}-{n}".replace("_", "-"), str(values[n]))]
    return words


def _run(checkout: Path, tool: str, *arguments: str) -> str:
    """Returns the output of a tool of fairseq in the environment of a checkout."""
    command = [str(checkout / ".venv/bin/python"), str(WORKER), tool, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout + done.stderr


def _statistics(log: str) -> list[dict[str, str]]:
    """Returns losses and norms of each update, and of the validation."""
    statistics = []
    for line in re.findall(r"\b(?:train_inner|valid)\b[ |:]*(\{.*\})$", log, re.MULTILINE):
        values = json.loads(line)
        statistics.append({name: x for name, x in values.items() if name.rpartition("_")[2] in ("loss", "gnorm")})
    return statistics


def measure(checkout: Path, case: str, data: Path) -> dict:
    """Returns losses and hypotheses of a case, computed by a checkout on binarised data."""
    user_dir = ["--user-dir", str(checkout / "fwp_fairseq")]
    with tempfile.TemporaryDirectory() as folder:
        save = ["--save-dir", folder]
        log = _run(
            checkout, "train", str(data), *user_dir, *ARCH, *TRANSLATION, *flags(case, checkout), *TRAINING, *save
        )
        path = ["--path", f"{folder}/checkpoint_last.pt"]
        search = ["--beam", "4", "--max-len-b", "20", "--max-sentences", "10", "--cpu", "--num-workers", "0"]
        translations = _run(checkout, "generate", str(data), *user_dir, *path, *search)
    hypotheses = dict(re.findall(r"^H-(\d+)\t(.*)$", translations, re.MULTILINE))
    statistics = _statistics(log)
    if len(statistics) < 20 or not hypotheses:
        raise RuntimeError(f"{case}: {len(statistics)} lines of losses, {len(hypotheses)} hypotheses")
    return {"losses": statistics, "hypotheses": hypotheses}


def _difference(ours: dict, theirs: dict) -> str:
    """Says where two measurements differ, or nothing. Translations are the same, their scores to within 1e-6."""
    for what in ("losses", "hypotheses"):
        if len(ours[what]) != len(theirs[what]):
            return f"{len(ours[what])} {what}, expected {len(theirs[what])}"
    for number, (a, b) in enumerate(zip(ours["losses"], theirs["losses"], strict=True), 1):
        if a != b:
            return f"losses differ in line {number}: {a}, expected {b}"
    for number, line in ours["hypotheses"].items():
        other = theirs["hypotheses"].get(number, "nan\t")
        (score, text), (known, expected) = line.split("\t"), other.split("\t")
        if text != expected or not abs(float(score) - float(known)) <= SCORES_WITHIN:  # also if a score is NaN
            return f"translation {number}: {line}, expected {other}"
    return ""


def _binarised(folder: Path) -> Path:
    multi30k.write_parts(folder, LINES, say=lambda _: None)
    parts = [f"--{part}pref={folder}/{part}" for part in LINES]
    languages = ["--source-lang", "en", "--target-lang", "de", "--joined-dictionary", "--thresholdsrc=4"]
    _run(ROOT, "preprocess", *languages, *parts, "--destdir", str(folder / "bin"))
    return folder / "bin"


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.golden", description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="the other checkout")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    options = parser.parse_args(argv)
    options.checkout = options.checkout.resolve()
    for checkout in (ROOT, options.checkout):
        if not (checkout / ".venv/bin/python").exists():
            parser.error(f"{checkout}: no .venv/bin/python in it; scripts/environment.sh makes it")
    return options


def main(argv: list[str] | None = None) -> int:
    options, different = _parse(argv), 0
    with tempfile.TemporaryDirectory() as folder:
        data = _binarised(Path(folder))
        for case in options.cases:
            difference = _difference(*(measure(checkout, case, data) for checkout in (ROOT, options.checkout)))
            print(f"{case:18} {difference or 'equal'}", flush=True)
            different += bool(difference)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
