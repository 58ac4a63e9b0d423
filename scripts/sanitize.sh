#!/bin/sh
# The tests of the compiled operators under AddressSanitizer and UndefinedBehaviorSanitizer, in a copy of this checkout.
# Needs g++, which takes longer than most of the tests. Usage: scripts/sanitize.sh [pytest arguments], e.g.
# -k "widths or decoding" for some of them (else all but those of the PyTorch backend); PYTHON chooses the interpreter.
set -eu
python=${PYTHON:-python}
root=$(cd "$(dirname "$0")/.." && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$root/csrc" "$root/fwp_fairseq" "$root/tests" "$root/setup.py" "$root/pyproject.toml" "$copy"
rm -f "$copy"/fwp_fairseq/*.so
cd "$copy"
FWP_BUILD=cpu FWP_SANITIZE=1 "$python" setup.py --quiet build_ext --inplace
# The interpreter is not instrumented and leaks by design; leaks of ours would be torch's tensors.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONPATH="$copy"
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so.6)" \
  FWP_REQUIRE=native "$python" -m pytest -q -p no:cacheprovider -k "not chunked" tests/ops/test_native.py \
  tests/ops/test_native_bf16.py tests/ops/test_decoding.py "$@"
