#!/usr/bin/env bash
# Builds, checks and times the CUDA kernels on a machine with a GPU; see --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu_check.sh [--help] [--only PARTS] [--record DIR]

Checks the CUDA kernels on this machine's GPU and, if they pass, times them. Needs no network and installs nothing: a
Python with a CUDA build of torch, pytest and numpy, nvcc of the same major version, and g++. Under ten minutes.

  --only PARTS   some of build,test,sanitize,benchmark,training,decoding, separated by commas (default: all, in this order)
  --record DIR   where records go (default: benchmarks/results; only from a commit without local changes)

parts
  build      compiles csrc/ for this GPU into fwp_fairseq/
  test       the kernels against the reference in float64, values and gradients
  sanitize   compute-sanitizer's memcheck and racecheck on a few of these tests, where the tool is installed
  benchmark  benchmarks.attention --device cuda: the operators and the decoding step
  training   benchmarks.training --device cuda: a big Transformer at WMT's sentence lengths, where fairseq and the corpus are
  decoding   benchmarks.decoding --device cuda: the same, beam search
Nothing is timed when build, test or sanitize of the same call failed.

environment variables
  FWP_DATA   the corpora's folder (default: ../shared/data)
  PYTHON     the interpreter (default: python3)
  MAX_JOBS   compilers at a time (default: one a processor)
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
every=build,test,sanitize,benchmark,training,decoding
parts=$every
record=
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit ;;
    --only | --record)
      [ $# -gt 1 ] || { echo "gpu_check.sh: $1 needs a value" >&2; exit 2; }
      if [ "$1" = --only ]; then parts=$2; else record=$(realpath -m "$2"); fi
      shift 2
      ;;
    *) echo "gpu_check.sh: unknown argument $1, see --help" >&2; exit 2 ;;
  esac
done
IFS=, read -ra chosen <<<"$parts"
for part in "${chosen[@]}"; do
  [[ ",$every," == *",$part,"* ]] || { echo "gpu_check.sh: --only $part: expected some of $every" >&2; exit 2; }
done
wants() { [[ ",$parts," == *",$1,"* ]]; }

cd "$root"
"$python" - <<'PY' || exit 1
import sys
try:
    import torch
except ImportError as error:
    sys.exit(f"gpu_check.sh: {sys.executable} has no torch ({error}); PYTHON=... chooses another interpreter")
if torch.version.cuda is None:
    sys.exit(f"gpu_check.sh: torch {torch.__version__} is built without CUDA")
if not torch.cuda.is_available():
    sys.exit("gpu_check.sh: torch sees no CUDA device")
print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}")
PY

export FWP_REQUIRE=native,cuda PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" MAX_JOBS=${MAX_JOBS:-$(nproc)}
kernels=("$python" -m pytest -q -p no:cacheprovider tests/cuda -m needs)
failed=()
part() {  # name, command: runs it, keeps its time and its failure
  local begin=$SECONDS
  printf '\n=== %s: %s\n' "$1" "${*:2}"
  "${@:2}" || failed+=("$1")
  printf '=== %s: %d s\n' "$1" $((SECONDS - begin))
}

build() { FWP_BUILD=cuda "$python" setup.py --quiet build_ext --inplace; }
sanitize() {
  if ! command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer is not installed: not run"
    return
  fi
  local few="delta and float16 and (every_instance and (16 or 64) or lengths and 129) or pads_write_nothing and delta" tool
  for tool in memcheck racecheck; do
    compute-sanitizer --tool "$tool" --error-exitcode 1 --target-processes all "${kernels[@]}" -x -k "$few" || return 1
  done
}
# Seconds after which nothing further begins; twice that ends it.
timed() {
  local seconds=$1
  timeout $((2 * seconds)) "$python" -m "${@:2}" --device cuda --record "${record:-benchmarks/results}" --time-limit "$seconds"
}
benchmark() { timed 90 benchmarks.attention; }
whole_models() {  # program, seconds
  local data=${FWP_DATA:-$root/../shared/data}/wmt10k
  if ! "$python" -c 'import fairseq, sentencepiece' 2>/dev/null || [ ! -d "$data" ]; then
    echo "fairseq, sentencepiece or $data is missing: not run"
    return
  fi
  timed "$2" "benchmarks.$1" --only '^big-wmt$' --rows elu,favor256,dpfp256,dpfp384,dpfp512,delta256
}
training() { whole_models training 60; }
decoding() { whole_models decoding 60; }

if wants build; then
  part build build
  if [ ${#failed[@]} -gt 0 ]; then exit 1; fi
fi
if wants test; then part test "${kernels[@]}"; fi
if wants sanitize; then part sanitize sanitize; fi
checks=${failed[*]}
for name in benchmark training decoding; do
  if ! wants "$name"; then continue; fi
  if [ -n "$checks" ]; then
    printf '\n%s not timed: %s failed\n' "$name" "$checks"
  else
    part "$name" "$name"
  fi
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
