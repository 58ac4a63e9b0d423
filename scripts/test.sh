#!/usr/bin/env bash
# The whole test suite, in the environment that it sets up itself.
set -euo pipefail

case ${1:-} in
  -h | --help)
    cat <<EOF
usage: scripts/test.sh [--help] [PYTEST ARGUMENTS]

Sets up .venv (scripts/environment.sh) and runs pytest in it: all tests, at most 20 minutes on 2 cores, or those that
the arguments select, e.g. scripts/test.sh tests/ops -k delta -x

environment variables
  FWP_REQUIRE      backends that must run, e.g. native,cuda: tests that would skip for lack of them fail instead
  FWP_SHARD        0/6, 1/6, ... or 5/6: that part of what is selected, for processes side by side
  FWP_DATA         folder of corpora (default: ../shared/data); tests that need one are skipped without it
  OMP_NUM_THREADS  default 1: the tests' tensors are small, more threads only wait for each other
EOF
    exit
    ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Absolute, because tests change the directory.
FWP_DATA=$(realpath -m "${FWP_DATA:-$root/../shared/data}")
export FWP_DATA
cd "$root"
scripts/environment.sh
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec .venv/bin/python -m pytest "$@"
