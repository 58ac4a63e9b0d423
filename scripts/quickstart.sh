#!/usr/bin/env bash
# Sets up everything, and trains, converts and compares translation models; see --help. With --texts it is `fwp train`.
set -euo pipefail

export FWP_CALLER_FOLDER=$PWD # the folder to which a relative --out refers
if [ -n "${FWP_DATA:-}" ]; then FWP_DATA=$(realpath -m "$FWP_DATA"); fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

previous=
for argument in "$@"; do
  case $argument in
    --) break ;;
    --texts) texts= ;;
    --texts=*) texts=${argument#*=} ;;
    *) if [ "$previous" = --texts ]; then texts=$argument; fi ;;
  esac
  previous=$argument
done
if [ -n "${texts:-}" ] || [ "$previous" = --texts ]; then
  if ! (cd "$FWP_CALLER_FOLDER" && [ -d "${texts:-}" ]); then
    echo "scripts/quickstart.sh: error: --texts${texts:+ $texts}: expected a folder" >&2 # before anything is installed
    exit 2
  fi
  scripts/environment.sh
  cd "$FWP_CALLER_FOLDER"
  exec "$root/.venv/bin/fwp" train "$@"
fi

# Flags are checked before anything is installed.
python=$(scripts/environment.sh --print-python)
"$python" -c 'import sys; from scripts.quickstart import parse; parse(sys.argv[1:])' "$@"
for argument in "$@"; do
  case $argument in
    --) break ;;
    -h | --help) exit ;;
  esac
done

scripts/environment.sh
# exec: a signal sent to this script must reach the program that handles it.
exec .venv/bin/python -m scripts.quickstart "$@"
