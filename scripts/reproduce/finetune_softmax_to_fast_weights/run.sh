#!/usr/bin/env bash
# From a softmax checkpoint to one with fast weights: see --help.
set -euo pipefail

export FWP_CALLER_FOLDER=$PWD # what relative paths in the arguments are relative to
if [ -n "${FWP_DATA:-}" ]; then FWP_DATA=$(realpath -m "$FWP_DATA"); fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
cd "$root"
recipe=scripts.reproduce.finetune_softmax_to_fast_weights

# A wrong flag should not cost an installation first.
python=$(scripts/python.sh --no-install)
"$python" -m $recipe.arguments "$@"
for argument in "$@"; do
  case $argument in
    --) break ;;
    -h | --help) exit ;;
  esac
done

python=$(scripts/python.sh)
# exec: a signal sent to this script must reach the program that knows how to stop.
exec "$python" -m $recipe "$@"
