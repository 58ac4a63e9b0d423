#!/bin/sh
# Runs the tests of the compiled operators under AddressSanitizer and UndefinedBehaviorSanitizer, in a copy of this
# checkout and with its .venv, which is set up first if need be. Needs g++; compiling takes longer than most of the
# tests. Usage: scripts/sanitize.sh [pytest arguments], e.g. -k "widths or decoding" to select tests (by default all but
# those of the PyTorch backend).
# scripts/sanitize.sh --fuzz 600 calls the operators for 600 seconds with random arguments instead.
set -eu
tests="tests/ops/test_native.py tests/ops/test_recurrence.py tests/ops/test_decoding.py"
tests="$tests tests/ops/test_window.py"
tests="$tests tests/feature_maps/test_row_functions.py tests/ops/test_boundary.py"
if [ "${1:-}" = --fuzz ]; then
  export FWP_FUZZ_SECONDS="${2:?--fuzz: expected a number of seconds}"
  tests="tests/ops/test_boundary.py"
  shift 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
"$root/scripts/environment.sh"
python=$root/.venv/bin/python
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$root/csrc" "$root/fwp_fairseq" "$root/tests" "$root/setup.py" "$root/pyproject.toml" "$copy"
rm -f "$copy"/fwp_fairseq/*.so
cd "$copy"
FWP_BUILD=cpu FWP_SANITIZE=1 "$python" setup.py --quiet build_ext --inplace
# Leaks are not checked: the interpreter leaks by design. Our own memory is torch's tensors and a scratch a thread.
# -s: a report of the sanitizers ends the process before pytest would show what it has captured.
# An allocation that is too large is an error of the call, as without the sanitizer.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONPATH="$copy"
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so.6)" \
  FWP_REQUIRE=native "$python" -m pytest -q -s -p no:cacheprovider -k "not chunked" $tests "$@"
