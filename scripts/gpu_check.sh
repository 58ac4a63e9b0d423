#!/usr/bin/env bash
# Builds, checks and times the CUDA kernels on a machine with a GPU; see --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu_check.sh [--help] [--only PARTS] [--record DIR] [--time-limit SECONDS]

Checks the CUDA kernels on this machine's GPU and, if they pass, times them. Ends within ten minutes, whatever the machine.
Needs no network and installs nothing: a Python with a CUDA build of torch, pytest, hypothesis and numpy, nvcc of the
same major version, and g++; and ninja, or one source is compiled after the other; and pytest-xdist, or as few files of
tests as there are run side by side.

  --only PARTS   some of build,test,sanitize,benchmark,training,decoding, separated by commas (default: all, in this order)
  --record DIR   where records go (default: benchmarks/results; only from a commit without local changes)
  --time-limit SECONDS
                 what runs then is ended, with 5 seconds to do so (default: 560)

parts
  build      compiles csrc/ for this GPU into fwp_fairseq/
  test       the kernels against the reference in float64, values and gradients; several processes share the GPU
  sanitize   compute-sanitizer's memcheck and racecheck on a few of these tests, where the tool can watch the device
  benchmark  benchmarks.attention --device cuda: the operators and the decoding step
  training   benchmarks.training --device cuda: a big Transformer at WMT's sentence lengths, where fairseq and the corpus are
  decoding   benchmarks.decoding --device cuda: the same, beam search
Nothing is timed when build, test or sanitize of the same call failed. The last lines say what was not run, why, and what
failed; the exit status is 1 when anything failed.

Build and test take the time that they need. Of what they leave, sanitize, benchmark, training and decoding get 2, 2, 3 and
2 parts; what one does not use goes to the next, and one that would get too little does not begin. Build and test have
failed when the limit ends them. The others are then not run to their end: records that are written stay, and the kernels
are timed though sanitize was ended. A second call with --only does what the first had no time for.

environment variables
  FWP_COMMIT the commit (40 digits) of which this folder is a clean copy, where it has no .git; records hold it
  FWP_DATA   the corpora's folder (default: ../shared/data)
  PYTHON     the interpreter (default: python3)
  MAX_JOBS   compilers at a time (default: one a processor)
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
every=build,test,sanitize,benchmark,training,decoding
parts=$every
record=benchmarks/results
limit=560
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit ;;
    --only | --record | --time-limit) [ $# -gt 1 ] || { echo "gpu_check.sh: $1 needs a value" >&2; exit 2; } ;;&
    --only) parts=$2 ;;
    --record) record=$(realpath -m "$2") ;;
    --time-limit) limit=$2 ;;
    *) echo "gpu_check.sh: unknown argument $1, see --help" >&2; exit 2 ;;
  esac
  shift 2
done
[[ $limit =~ ^[1-9][0-9]{0,5}$ ]] || { echo "gpu_check.sh: --time-limit $limit: expected whole seconds" >&2; exit 2; }
IFS=, read -ra chosen <<<"$parts"
for part in "${chosen[@]}"; do
  [[ ",$every," == *",$part,"* ]] || { echo "gpu_check.sh: --only $part: expected some of $every" >&2; exit 2; }
done
wants() { [[ ",$parts," == *",$1,"* ]]; }

# Parts of the time that is left, of those that are yet to come; the fewest seconds with which one begins.
declare -A share=([sanitize]=2 [benchmark]=2 [training]=3 [decoding]=2)
declare -A least=([build]=1 [test]=1 [sanitize]=30 [benchmark]=40 [training]=60 [decoding]=60)
for part in "${!share[@]}"; do wants "$part" || share[$part]=0; done
end=$limit  # of the part that runs, in seconds since the start
failed=()
missing=()

not_run() {  # name, why
  missing+=("$1: $2")
  case $1 in build | test) failed+=("$1") ;; esac
}
limited() {  # command: until the part's end; 124 when it was ended, 137 when it had to be killed
  local left=$((end - SECONDS))
  [ "$left" -gt 0 ] || return 124
  timeout --kill-after 5 "$left" "$@" &
  wait $!
}
interrupted() {  # timeout's children do not see what ends this script
  jobs -p | xargs -r kill
  exit 130
}
trap interrupted INT TERM
part() {  # name: runs part_name within its time; keeps its failure, or that it was ended
  local begin=$SECONDS left=$((limit - SECONDS)) status=0 all=0 other
  if [ -n "${share[$1]:-}" ]; then
    for other in "${share[@]}"; do all=$((all + other)); done
    left=$((left * share[$1] / all))
    share[$1]=0
  fi
  if [ "$left" -lt "${least[$1]}" ]; then
    not_run "$1" "$left s of the time limit are left for it, it begins with ${least[$1]}"
    return
  fi
  end=$((SECONDS + left))
  printf '\n=== %s: at most %d s\n' "$1" "$left"
  "part_$1" || status=$?
  printf '=== %s: %d s\n' "$1" $((SECONDS - begin))
  case $status in
    0) ;;
    124 | 137) not_run "$1" "ended after $((SECONDS - begin)) s" ;;
    *) failed+=("$1") ;;
  esac
}
# Fails when one of them failed; else 124 when one was ended.
together() {  # count, function: runs function 0, function 1, ... at the same time, prints one after the other
  local logs number status=0 one processes=()
  logs=$(mktemp -d)
  for ((number = 0; number < $1; number++)); do
    { trap interrupted TERM; "$2" "$number"; } >"$logs/$number" 2>&1 &
    processes+=($!)
  done
  for number in "${!processes[@]}"; do
    one=0
    wait "${processes[number]}" || one=$?
    cat "$logs/$number"
    [ "$one" = 0 ] || echo "$2 $number of $1: exit status $one"
    case $one in
      0) ;;
      124 | 137) [ "$status" != 0 ] || status=124 ;;
      *) status=1 ;;
    esac
  done
  rm -r "$logs"
  return "$status"
}

cd "$root"
# shellcheck disable=SC2016  # Python, not the shell
device=$(limited "$python" -c '
import sys
try:
    import torch
except ImportError as error:
    sys.exit(f"gpu_check.sh: {sys.executable} has no torch ({error}); PYTHON=... chooses another interpreter")
if torch.version.cuda is None:
    sys.exit(f"gpu_check.sh: torch {torch.__version__} is built without CUDA")
if not torch.cuda.is_available():
    sys.exit("gpu_check.sh: torch sees no CUDA device")
print("{}.{}".format(*torch.cuda.get_device_capability()))
print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}")
') || exit 1
echo "${device#*$'\n'}"

processors=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)  # which these variables would limit
export FWP_REQUIRE=native,cuda PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" MAX_JOBS=${MAX_JOBS:-$processors}
export TORCH_CUDA_ARCH_LIST=${device%%$'\n'*}  # this device's, whatever the environment says
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}   # the reference's tensors are small
kernels=("$python" -m pytest -q -p no:cacheprovider -o faulthandler_timeout=60 -m needs)

part_build() {
  local bin  # where ninja lies
  bin=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))') || return 1
  # The largest source takes longer than all others side by side; the code is the same.
  if [[ $(nvcc --help 2>/dev/null) == *--split-compile* ]]; then
    export NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS:-} --split-compile=0"
  fi
  PATH="$bin:$PATH" FWP_BUILD=cuda limited "$python" setup.py --quiet build_ext --inplace
}

# Most of a test's time is the reference on the CPU. Without pytest-xdist a file of tests is a process.
processes=$(((processors + 1) / 2))
[ "$processes" -le 8 ] || processes=8
files=(tests/cuda/test_{decode_kernels,glue,kernels,walks}.py)
one_file() { limited "${kernels[@]}" "${files[$1]}"; }
part_test() {
  if limited "$python" -c 'import xdist' 2>/dev/null; then
    limited "${kernels[@]}" -n "$processes" tests/cuda
  else
    together ${#files[@]} one_file
  fi
}

part_sanitize() {
  local status=0 tools=(memcheck racecheck)
  # Errors of the API are the tests' to find; torch's own attempts are among them.
  local checked=(compute-sanitizer --error-exitcode 1 --report-api-errors no --kernel-name kns=fwp)
  local few="every_instance and (16-delta-torch.float16 or 64-delta-torch.float16 or 32-delta-torch.float32)"
  few+=" or lengths and 129-delta or test_widths and favor and 80-8 or pads_write_nothing and delta"
  if ! command -v compute-sanitizer >/dev/null; then
    not_run sanitize "compute-sanitizer is not installed"
    return
  fi
  # Some virtual machines have a GPU that it cannot attach to.
  limited "${checked[@]}" "$python" -c 'import torch; torch.ones(9, device="cuda").sum().item()' || status=$?
  case $status in
    0) together ${#tools[@]} sanitized ;;
    124 | 137) return "$status" ;;
    *) not_run sanitize "compute-sanitizer cannot watch this device" ;;
  esac
}
sanitized() { limited "${checked[@]}" --tool "${tools[$1]}" "${kernels[@]}" -x -k "$few" tests/cuda; }

# Half of the time that a part begins with is for its start, and for what has begun when nothing further may.
timed() {  # part, program, its arguments
  local seconds=$((end - SECONDS - least[$1] / 2))
  limited "$python" -m "benchmarks.$2" --device cuda --record "$record" --time-limit "$seconds" "${@:3}"
}
part_benchmark() { timed benchmark attention; }
# Threads: the reference in float64 is on the CPU.
part_training() { timed training training --only '^big-wmt$' --threads 4; }
part_decoding() { timed decoding decoding --only '^big-wmt$' --threads 4; }
without_models() {  # why whole models cannot be timed, or nothing
  local data=${FWP_DATA:-$root/../shared/data}/wmt10k why
  end=$limit
  if ! why=$(limited "$python" -c 'import fairseq, sentencepiece' 2>&1); then
    echo "${why##*$'\n'}"
  elif [ ! -d "$data" ]; then
    echo "$data is missing"
  fi
}

models=
if wants training || wants decoding; then
  models=$(without_models)
  [ -z "$models" ] || share[training]=0 share[decoding]=0
fi
checks=
for name in ${every//,/ }; do
  wants "$name" || continue
  why=${checks:+$checks failed}
  case $name in
    build | test | sanitize) [[ $checks != *build* ]] && why= || why="build failed" ;;
    training | decoding) why=${why:-$models} ;;
  esac
  if [ -n "$why" ]; then not_run "$name" "$why"; else part "$name"; fi
  case $name in build | test | sanitize) checks=${failed[*]} ;; esac
done
[ ${#missing[@]} -eq 0 ] || printf '\n'
for part in "${missing[@]}"; do echo "not run: $part"; done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
