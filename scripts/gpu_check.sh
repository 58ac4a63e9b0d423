#!/usr/bin/env bash
# Builds, checks and times the CUDA kernels on a machine with a GPU; see --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu_check.sh [--help] [--only PARTS] [--record DIR]

Checks the CUDA kernels on this machine's GPU and, if they pass, times them. Needs no network and installs nothing: a
Python with a CUDA build of torch, pytest, hypothesis and numpy, nvcc of the same major version, and g++; and ninja, or
one source is compiled after the other. About a quarter of an hour on 16 cores (an estimate); where a call may last ten
minutes only, --only build,test,sanitize and --only benchmark,training,decoding.

  --only PARTS   some of build,test,sanitize,benchmark,training,decoding, separated by commas (default: all, in this order)
  --record DIR   where records go (default: benchmarks/results; only from a commit without local changes)

parts
  build      compiles csrc/ for this GPU into fwp_fairseq/
  test       the kernels against the reference in float64, values and gradients
  sanitize   compute-sanitizer's memcheck and racecheck on a few of these tests, where the tool can watch the device
  benchmark  benchmarks.attention --device cuda: the operators and the decoding step
  training   benchmarks.training --device cuda: a big Transformer at WMT's sentence lengths, where fairseq and the corpus are
  decoding   benchmarks.decoding --device cuda: the same, beam search
Nothing is timed when build, test or sanitize of the same call failed. The last lines say what failed and what was not run.

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
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}  # the reference's tensors are small
kernels=("$python" -m pytest -q -p no:cacheprovider tests/cuda -m needs)
failed=()
missing=()
not_run() {  # name, why
  missing+=("$1")
  echo "$2: not run"
}
part() {  # name, command: runs it, keeps its time and its failure
  local begin=$SECONDS
  printf '\n=== %s: %s\n' "$1" "${*:2}"
  "${@:2}" || failed+=("$1")
  printf '=== %s: %d s\n' "$1" $((SECONDS - begin))
}

build() {
  local bin  # where ninja lies
  bin=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))') || return 1
  PATH="$bin:$PATH" FWP_BUILD=cuda "$python" setup.py --quiet build_ext --inplace
}
sanitize() {
  local tool checked=(compute-sanitizer --error-exitcode 1)
  if ! command -v compute-sanitizer >/dev/null; then
    not_run sanitize "compute-sanitizer is not installed"
    return
  fi
  # Some virtual machines have a GPU that it cannot attach to.
  if ! "${checked[@]}" "$python" -c 'import torch; torch.ones(9, device="cuda").sum().item()'; then
    not_run sanitize "compute-sanitizer cannot watch this device"
    return
  fi
  local few="every_instance and (16-delta-torch.float16 or 64-delta-torch.float16 or 32-delta-torch.float32)"
  few+=" or lengths and 129-delta-torch.float16 or test_widths and favor and 80-8 or pads_write_nothing and delta"
  for tool in memcheck racecheck; do
    "${checked[@]}" --tool "$tool" --kernel-name kns=fwp "${kernels[@]}" -x -k "$few" || return 1
  done
}
# Seconds after which nothing further begins; what has begun gets three minutes.
timed() {
  local seconds=$1
  timeout $((seconds + 180)) "$python" -m "${@:2}" --device cuda --record "${record:-benchmarks/results}" --time-limit "$seconds"
}
benchmark() { timed 90 benchmarks.attention; }
whole_models() {  # program, seconds
  local data=${FWP_DATA:-$root/../shared/data}/wmt10k why
  if ! why=$("$python" -c 'import fairseq, sentencepiece' 2>&1); then
    not_run "$1" "${why##*$'\n'}"
    return
  elif [ ! -d "$data" ]; then
    not_run "$1" "$data is missing"
    return
  fi
  # Threads: the reference in float64 is on the CPU.
  timed "$2" "benchmarks.$1" --only '^big-wmt$' --threads 4 --rows elu,favor256,dpfp256,dpfp384,dpfp512,delta256
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
    missing+=("$name")
  else
    part "$name" "$name"
  fi
done
[ ${#missing[@]} -eq 0 ] || printf '\nnot run: %s\n' "${missing[*]}"
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
