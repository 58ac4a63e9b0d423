#!/usr/bin/env bash
# WMT14 English-German for run.py --preset wmt14: see --help, and --dry-run for cost and downloads.
set -euo pipefail

export FWP_CALLER_FOLDER=$PWD # what a relative --out is relative to
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
cd "$root"

# A wrong flag should not cost an installation first, and --help and --dry-run need none.
python=$(scripts/python.sh --no-install)
module=scripts.reproduce.wmt14_bleu_vs_d_dot.prepare
"$python" -m "$module" --dry-run "$@"
for argument in "$@"; do
  case $argument in
    -h | --help | --dry-run) exit ;;
  esac
done

python=$(scripts/python.sh)
# exec: a signal sent to this script must reach the program that knows how to stop.
exec "$python" -m "$module" "$@"
