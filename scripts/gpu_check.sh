#!/usr/bin/env bash
# Builds, checks and times the CUDA kernels on a machine with a GPU; see --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu_check.sh [--help] [--only PARTS] [--record DIR] [--time-limit SECONDS]

Checks the CUDA kernels on this machine's GPU and, if the checks pass, times them. Ends within ten minutes on any machine.

Needs no network and installs nothing. It needs a Python with torch (a CUDA build), pytest, hypothesis and numpy; nvcc of
the same major version as torch's CUDA; and g++. Two packages make it faster: ninja, without which sources are compiled one
after another, and pytest-xdist, without which only one process for each file of tests runs.

  --only PARTS   some of build,test,sanitize,benchmark,training,decoding, separated by commas (default: all, in this order)
  --record DIR   folder for records (default: benchmarks/results); the checkout must be a commit without local changes
  --time-limit SECONDS
                 after this time the running part is ended, which takes up to 5 more seconds (default: 560)

parts
  build      compiles csrc/ for this GPU into fwp_fairseq/
  test       compares the kernels with the reference in float64, values and gradients; several processes share the GPU
  sanitize   runs a few of these tests under compute-sanitizer (memcheck, racecheck), if it can attach to the device
  benchmark  runs benchmarks.attention --device cuda: the operators and the decoding step
  training   runs benchmarks.training --device cuda: a big Transformer at WMT's sentence lengths; needs fairseq and the corpus
  decoding   runs benchmarks.decoding --device cuda: beam search with the same model
If build, test or sanitize fails, nothing is timed. The last lines of output say what was not run and why, and what failed;
the exit status is 1 if anything failed.

Build and test take the time that they need. The rest is shared: sanitize, benchmark, training and decoding get 2, 2, 3 and
2 parts of it. Time that one of them does not use goes to the next ones, and one that would get too little does not begin.
If the limit ends build or test, that counts as a failure. If it ends another part, records that are already written stay,
and the kernels are timed even if sanitize was ended. A second call with --only can run the parts that had no time.

environment variables
  FWP_COMMIT for a folder without .git: the commit (40 digits) of which it is a clean copy, written into records
  FWP_DATA   the folder of the corpora (default: ../shared/data)
  PYTHON     the Python to use (default: python3)
  MAX_JOBS   how many compilers run at a time (default: one for each processor)
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

# share: how the time that build and test leave is divided. least: a part begins only with this many seconds.
declare -A share=([sanitize]=2 [benchmark]=2 [training]=3 [decoding]=2)
declare -A least=([build]=1 [test]=1 [sanitize]=30 [benchmark]=40 [training]=60 [decoding]=60)
for part in "${!share[@]}"; do wants "$part" || share[$part]=0; done
end=$limit  # when the running part must end, in seconds since the start
failed=()
missing=()

not_run() {  # name, why
  missing+=("$1: $2")
  case $1 in build | test) failed+=("$1") ;; esac
}
limited() {  # command: runs it until the part must end; status 124 if it was ended, 137 if it had to be killed
  local left=$((end - SECONDS))
  [ "$left" -gt 0 ] || return 124
  timeout --kill-after 5 "$left" "$@" &
  wait $!
}
interrupted() {  # ends the children: timeout puts them into groups that Ctrl-C does not reach
  jobs -p | xargs -r kill
  exit 130
}
trap interrupted INT TERM
part() {  # name: runs part_name within its time; notes whether it failed or was ended
  local begin=$SECONDS left=$((limit - SECONDS)) status=0 all=0 other
  if [ -n "${share[$1]:-}" ]; then
    for other in "${share[@]}"; do all=$((all + other)); done
    left=$((left * share[$1] / all))
    share[$1]=0
  fi
  if [ "$left" -lt "${least[$1]}" ]; then
    not_run "$1" "only $left s of the time limit are left for it, and it needs ${least[$1]}"
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
# Runs "function 0", "function 1", ... at the same time, and prints their output one after another.
# Status: 1 if one of them failed, else 124 if one was ended, else 0.
together() {  # count, function
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

processors=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)  # without these variables, which limit what nproc prints
export FWP_REQUIRE=native,cuda PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" MAX_JOBS=${MAX_JOBS:-$processors}
export TORCH_CUDA_ARCH_LIST=${device%%$'\n'*}  # of this device, even if the environment names others
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}   # the reference's tensors are small
kernels=("$python" -m pytest -q -p no:cacheprovider -o faulthandler_timeout=60 -m needs)

part_build() {
  local bin  # the folder of ninja
  bin=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))') || return 1
  # The largest source takes longer than all others in parallel. This option splits its compilation; the code is the same.
  if [[ $(nvcc --help 2>/dev/null) == *--split-compile* ]]; then
    export NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS:-} --split-compile=0"
  fi
  PATH="$bin:$PATH" FWP_BUILD=cuda limited "$python" setup.py --quiet build_ext --inplace
}

# Tests spend most of their time in the reference on the CPU. Without pytest-xdist, each file of tests gets a process.
processes=$(((processors + 1) / 2))
[ "$processes" -le 8 ] || processes=8
files=(tests/cuda/test_{decode_kernels,glue,kernels,segments}.py)
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
  # Errors of API calls are not reported: the tests find those that matter, and torch causes harmless ones.
  local checked=(compute-sanitizer --error-exitcode 1 --report-api-errors no --kernel-name kns=fwp)
  local few="every_instance and (16-delta-torch.float16 or 64-delta-torch.float16 or 32-delta-torch.float32)"
  few+=" or lengths and 129-delta or test_widths and favor and 80-8 or pads_write_nothing and delta"
  if ! command -v compute-sanitizer >/dev/null; then
    not_run sanitize "compute-sanitizer is not installed"
    return
  fi
  # In some virtual machines compute-sanitizer cannot attach to the GPU.
  limited "${checked[@]}" "$python" -c 'import torch; torch.ones(9, device="cuda").sum().item()' || status=$?
  case $status in
    0) together ${#tools[@]} sanitized ;;
    124 | 137) return "$status" ;;
    *) not_run sanitize "compute-sanitizer cannot attach to this device" ;;
  esac
}
sanitized() { limited "${checked[@]}" --tool "${tools[$1]}" "${kernels[@]}" -x -k "$few" tests/cuda; }

# Half of the least time is kept for starting, and for finishing the measurement that is running at the time limit.
timed() {  # part, program, its arguments
  local seconds=$((end - SECONDS - least[$1] / 2))
  limited "$python" -m "benchmarks.$2" --device cuda --record "$record" --time-limit "$seconds" "${@:3}"
}
part_benchmark() { timed benchmark attention; }
# Four threads, because the reference in float64 runs on the CPU.
part_training() { timed training training --only '^big-wmt$' --threads 4; }
part_decoding() { timed decoding decoding --only '^big-wmt$' --threads 4; }
without_models() {  # prints why whole models cannot be timed, or nothing if they can
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
