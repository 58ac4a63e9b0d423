#!/bin/sh
# Runs the tests of the compiled operators under AddressSanitizer and UndefinedBehaviorSanitizer, in a copy of this
# checkout. Needs g++; compiling takes longer than most of the tests. Usage: scripts/sanitize.sh [pytest arguments], e.g.
# -k "widths or decoding" to select tests (by default all but those of the PyTorch backend). PYTHON sets the interpreter.
set -eu
python=${PYTHON:-python}
root=$(cd "$(dirname "$0")/.." && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$root/csrc" "$root/fwp_fairseq" "$root/tests" "$root/setup.py" "$root/pyproject.toml" "$copy"
rm -f "$copy"/fwp_fairseq/*.so
cd "$copy"
FWP_BUILD=cpu FWP_SANITIZE=1 "$python" setup.py --quiet build_ext --inplace
# Leaks are not checked: the interpreter leaks by design, and our own memory is that of torch's tensors.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONPATH="$copy"
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so.6)" \
  FWP_REQUIRE=native "$python" -m pytest -q -p no:cacheprovider -k "not chunked" tests/ops/test_native.py \
  tests/ops/test_native_bf16.py tests/ops/test_decoding.py "$@"
