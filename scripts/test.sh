#!/usr/bin/env bash
# Runs the test suite, in an environment that it sets up itself.
set -euo pipefail

quick=()
case ${1:-} in
  -h | --help)
    cat <<TEXT
usage: scripts/test.sh [--help] [--quick] [PYTEST ARGUMENTS]

Sets up .venv (scripts/environment.sh) and runs pytest in it, one process more than there are processors, because tests
wait for tools: all tests, about 20 minutes on 2 cores, or those that the arguments select, e.g.
scripts/test.sh tests/ops -k delta -x

  --quick  leaves out the tests that are marked slow (fairseq's tools and whole trainings, the CUDA kernels on the CPU,
           older instruction sets), for while something is changed; the first argument
  -n 0     one process, which a debugger (--pdb) needs; -n 4: four

environment variables
  FWP_REQUIRE      backends that must run, e.g. native,cuda: tests that would skip for lack of them fail instead
  FWP_DATA         folder of corpora (default: ../shared/data); what it lacks is downloaded
  OMP_NUM_THREADS  default 1: the tests' tensors are small, more threads only wait for each other
TEXT
    exit
    ;;
  --quick)
    quick=(-m "not slow")
    shift
    ;;
esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Absolute, because tests change the directory.
FWP_DATA=$(realpath -m "${FWP_DATA:-$root/../shared/data}")
export FWP_DATA
cd "$root"
scripts/environment.sh
processors=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # which these variables would limit
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
unset PYTHONDONTWRITEBYTECODE # without bytecode each of the tests' hundreds of processes compiles this project again
exec .venv/bin/python -m pytest -n "$((processors + 1))" --dist loadgroup "${quick[@]}" "$@"
