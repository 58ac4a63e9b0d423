#!/usr/bin/env bash
# Converts a softmax checkpoint to fast weights and fine-tunes it; see --help.
set -euo pipefail

export FWP_CALLER_FOLDER=$PWD # the folder to which relative paths in the arguments refer
if [ -n "${FWP_DATA:-}" ]; then FWP_DATA=$(realpath -m "$FWP_DATA"); fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
cd "$root"
recipe=scripts.reproduce.finetune_softmax_to_fast_weights

# Flags are checked before anything is installed.
python=$(scripts/python.sh --no-install)
"$python" -m $recipe.arguments "$@"
for argument in "$@"; do
  case $argument in
    --) break ;;
    -h | --help) exit ;;
  esac
done

python=$(scripts/python.sh)
# exec: a signal sent to this script must reach the program that handles it.
exec "$python" -m $recipe "$@"
