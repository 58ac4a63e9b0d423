#!/usr/bin/env bash
# Prepares the corpus of wmt14 or iwslt14 for run.py. --help has the options; --dry-run prints cost and downloads.
set -euo pipefail

export FWP_CALLER_FOLDER=$PWD # where a relative --out starts
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
cd "$root"

# Wrong flags are found, and --help and --dry-run work, before anything is installed.
python=$(scripts/python.sh --no-install)
module=scripts.reproduce.wmt14_bleu_vs_d_dot.prepare
"$python" -m "$module" --dry-run "$@"
for argument in "$@"; do
  case $argument in
    -h | --help | --dry-run) exit ;;
  esac
done

python=$(scripts/python.sh)
# exec, so that a signal sent to this script reaches the program, which handles it.
exec "$python" -m "$module" "$@"
