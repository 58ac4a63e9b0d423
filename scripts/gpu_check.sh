#!/usr/bin/env bash
# Builds, checks and times the CUDA kernels on a machine with a GPU, one part at a call; see --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/gpu_check.sh [--help] [--record DIR] [--for CAPABILITY] [--time-limit SECONDS] PART

Builds the CUDA kernels for this machine's GPU, and runs one part of their checks. Works on a bare machine and on a copy of
the sources without .git; needs no network, and installs nothing outside of a temporary folder. csrc/cuda/README.md has the
calls of a first run in their order.

parts
  build      compiles csrc/ for this GPU into fwp_fairseq/; all other parts begin with this unless it has been done
  check      runs fwp check: the kernels' errors beside PyTorch's; its result is the one that trainings use
  test       compares the kernels with the reference in float64, values and gradients; several processes share the GPU
  memcheck, racecheck, synccheck
             runs a few of these tests under this tool of compute-sanitizer
  benchmark  runs benchmarks.attention --device cuda: the operators and the decoding step
  compare    the same, at a few shapes, beside the commits that .gpu/earlier-*.tgz hold
  peers      at these shapes beside flash-linear-attention, whose kernels Triton compiles and tries for minutes
  models     runs benchmarks.training and benchmarks.decoding --device cuda: a big Transformer at WMT's sentence lengths
  decoding   runs benchmarks.decoding_length --device cuda: a base Transformer, 16 to 1,024 tokens, batches of 8 and 64
  profile    runs benchmarks.training --profile --device cuda: how much of an update is attention, how long the GPU waits
  earlier    compiles commits 7e205be and 93f58bf, each in a worktree of its own, into earlier-COMMIT.tgz in DIR

The exit status is 0 if the part ran and passed, else 1; the last line says which. A test that takes longer than 2 minutes, or
6 under compute-sanitizer, ends its process at once, with a traceback under the line "Timeout" and the status 1.

  --record DIR   folder for what is worth keeping: PART.log, the records of benchmarks, and the compiled libraries
  --for CAPABILITY
                 with build and earlier: compile for GPUs of this compute capability, e.g. 9.0; needs no GPU
  --time-limit SECONDS
                 after this time the part is ended, which counts as a failure and takes up to 5 more seconds (default: 530);
                 benchmarks begin no measurement for which too little of it is left, and keep their records

It needs a Python with torch (a CUDA build), pytest 9, hypothesis and numpy; nvcc of the same major version as torch's CUDA;
and g++. ninja compiles several sources at a time, and pytest-xdist runs several tests at a time. The parts models, decoding and
profile need fairseq, sentencepiece and the corpus.

What the machine lacks may lie in the folder .gpu beside this one:
  .gpu/wheels/*.whl        packages, which are put before those of this Python
  .gpu/data                the corpora
  .gpu/library-*.tgz       the compiled library that build left in DIR; it is taken instead of compiling if it is of the
                           same sources, compute capability and versions
  .gpu/earlier-*.tgz       what the part earlier left in DIR

environment variables
  FWP_COMMIT for a folder without .git: the commit (40 digits) of which it is a clean copy, written into records
  FWP_DATA   the folder of the corpora (default: .gpu/data, or ../shared/data)
  PYTHON     the Python to use (default: python3)
  MAX_JOBS   how many compilers run at a time (default: one for each processor)
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
record=
capability=
limit=530
part=
fail() {
  echo "gpu_check.sh: $1" >&2
  exit "${2:-1}"
}
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit ;;
    --record | --for | --time-limit) [ $# -gt 1 ] || fail "$1 needs a value" 2 ;;&
    --record) record=$(realpath -m "$2"); shift ;;
    --for) capability=$2; shift ;;
    --time-limit) limit=$2; shift ;;
    build | check | test | memcheck | racecheck | synccheck | benchmark | compare | peers | models | decoding | profile | earlier)
      [ -z "$part" ] || fail "expected one part, found $part and $1" 2
      part=$1 ;;
    *) fail "unknown argument $1, see --help" 2 ;;
  esac
  shift
done
[[ $limit =~ ^[1-9][0-9]{0,5}$ ]] || fail "--time-limit $limit: expected whole seconds" 2
[ -n "$part" ] || fail "expected a part, found none; see --help" 2
[[ $capability =~ ^([0-9]+\.[0-9])?$ ]] || fail "--for $capability: expected a compute capability, e.g. 9.0" 2
[[ -z $capability || $part =~ ^(build|earlier)$ ]] || fail "--for: expected the part build or earlier, found $part" 2
[[ -n $record || $part != earlier ]] || fail "earlier: expected --record DIR, in which the libraries are left" 2
python=$(command -v "${PYTHON:-python3}") || fail "PYTHON: there is no ${PYTHON:-python3}"
python=$(realpath -s "$python")
[ -z "${FWP_DATA:-}" ] || FWP_DATA=$(realpath -m "$FWP_DATA")

site=$(mktemp -d)
log=
finish() {
  rm -rf "$site"
  exec >/dev/null 2>&1
  [ -z "$log" ] || timeout 5 tail --pid="$log" -f /dev/null || true  # or the log's last lines might be lost
}
interrupted() {  # ends the child: timeout puts it into a group that Ctrl-C does not reach
  jobs -rp | xargs -r kill
  exit 130
}
trap finish EXIT
trap interrupted INT TERM
limited() {  # command: ends it at the time limit
  local left=$((limit - SECONDS)) status=0
  [ "$left" -gt 0 ] || fail "$part: no time is left of --time-limit $limit"
  timeout --kill-after 5 "$left" "$@" &
  wait $! || status=$?
  case $status in 124 | 137) fail "$part: ended at --time-limit $limit" ;; esac
  return "$status"
}

cd "$root"
if [ -n "$record" ]; then
  mkdir -p "$record"
  exec > >(trap '' INT TERM; exec tee "$record/$part.log") 2>&1
  log=$!
fi
wheels=(.gpu/wheels/*.whl)
if [ -e "${wheels[0]}" ]; then
  limited "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --root-user-action ignore \
    --target "$site" "${wheels[@]}" ||
    fail "could not install .gpu/wheels"
fi
[ ! -d .gpu/data ] || export FWP_DATA=${FWP_DATA:-$root/.gpu/data}
export PYTHONPATH="$root:$site${PYTHONPATH:+:$PYTHONPATH}"

# shellcheck disable=SC2016  # Python, not the shell
device=$(limited "$python" -c '
import sys
part, record, capability = sys.argv[1:]
def expect(*modules):
    for module in modules:
        try:
            __import__(module)
        except ImportError as error:
            sys.exit(f"gpu_check.sh: {part}: {sys.executable} has no {module} ({error}); PYTHON=... chooses another one")
expect("torch", "setuptools", *{"check": ["numpy"], "peers": ["fla"]}.get(part, []))
if part in ("models", "decoding", "profile"):
    expect("fairseq", "sentencepiece")
import torch
if torch.version.cuda is None:
    sys.exit(f"gpu_check.sh: torch {torch.__version__} is built without CUDA")
if not capability and not torch.cuda.is_available():
    sys.exit("gpu_check.sh: torch sees no CUDA device")
if part in ("test", "memcheck", "racecheck", "synccheck"):
    expect("pytest", "hypothesis", "numpy")
    import pytest
    if int(pytest.__version__.partition(".")[0]) < 9:
        sys.exit(f"gpu_check.sh: pytest is {pytest.__version__}, expected 9 or later, which ends tests that hang")
elif record and part not in ("build", "check", "earlier"):
    from scripts.common.records import require_commit
    try:
        require_commit()
    except ValueError as error:
        sys.exit(f"gpu_check.sh: {error}")
if part in ("models", "decoding", "profile"):
    from benchmarks.corpus import SENTENCES
    from scripts.data.sources import folder
    if not (corpus := folder(SENTENCES["wmt"][0]).parent).is_dir():
        sys.exit(f"gpu_check.sh: {corpus}: no such folder; FWP_DATA names the folder of the corpora")
print(capability or "{}.{}".format(*torch.cuda.get_device_capability()))
print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")
if not capability:
    print(torch.cuda.get_device_name())
' "$part" "$record" "$capability") || exit 1
echo "${device#*$'\n'}"

processors=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)  # without these variables, which limit what nproc prints
export FWP_REQUIRE=native,cuda MAX_JOBS=${MAX_JOBS:-$processors}
export TORCH_CUDA_ARCH_LIST=${device%%$'\n'*}  # of this device, even if the environment names others
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}   # the reference's tensors are small
nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")

build() {
  local digest library
  digest=$({ find csrc setup.py -type f | LC_ALL=C sort | xargs cat; head -n 2 <<<"$device"; } | sha256sum | cut -c1-16)
  library=library-$digest.tgz
  if [ -e ".gpu/$library" ]; then
    tar xzf ".gpu/$library" || return
    echo "=== build: .gpu/$library"
    return
  fi
  compiled || return
  echo "=== build: $SECONDS s"
  [ -z "$record" ] || tar czf "$record/$library" fwp_fairseq/_build.json fwp_fairseq/_*.so
}
compiled() {  # compiles the sources in the current folder
  local bin  # the folder of ninja
  bin=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')
  # The largest source takes longer than all others in parallel. This option splits its compilation; the code is the same.
  if [[ $("$nvcc" --help 2>/dev/null) == *--split-compile* ]]; then
    export NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS:-} --split-compile=0"
  fi
  PATH="$bin:$PATH" FWP_BUILD=cuda limited "$python" setup.py --quiet build_ext --inplace
}
check_earlier() {
  local commit home
  for commit in 7e205be 93f58bf; do
    commit=$(git rev-parse --verify --quiet "$commit^{commit}") || fail "earlier: this clone has no commit $commit"
    home=$site/$commit
    git worktree add --quiet --detach "$home" "$commit" || return
    (cd "$home" && PYTHONPATH=$site compiled && tar czf "$record/earlier-$commit.tgz" -C "$site" "$commit/fwp_fairseq") ||
      { git worktree remove --force "$home"; return 1; }
    git worktree remove --force "$home"
    echo "=== earlier: $record/earlier-$commit.tgz"
  done
}

# An access outside of memory poisons a process: with blocking launches it is reported by the test that made it.
tests() {  # seconds for one test, the command before Python, then pytest's arguments
  CUDA_LAUNCH_BLOCKING=1 limited "${@:2}" -m needs tests/cuda -p no:cacheprovider -o faulthandler_exit_on_timeout=true \
    -o faulthandler_timeout="$1"
}
check_check() { limited "$python" -m fwp_fairseq check; }
check_test() {  # the tests spend most of their time in the reference on the CPU
  local processes=$(((processors + 1) / 2)) several=(-v)
  "$python" -c 'import xdist' 2>/dev/null && several=(-q -n $((processes > 8 ? 8 : processes)))
  tests 120 "$python" -m pytest "${several[@]}"
}

sanitizer() {  # prints the path of compute-sanitizer
  local beside
  command -v compute-sanitizer && return
  beside=$(dirname "$(readlink -f "$nvcc")")
  for beside in "$beside" "$beside/../compute-sanitizer" "${CUDA_HOME:-/usr/local/cuda}"/{bin,compute-sanitizer}; do
    [ ! -x "$beside/compute-sanitizer" ] || { echo "$beside/compute-sanitizer"; return; }
  done
  fail "$part: compute-sanitizer is neither on PATH nor beside $nvcc"
}
check_sanitizer() {
  local few="test_long or test_many_heads or test_widths and not row_function or test_cross_attention and 70-140 or pads_write_nothing and (delta or gated)"
  few+=" or test_maps_and_normalizers and (favor or dpfp)"
  local found checked
  found=$(sanitizer) || return
  # Errors of API calls are not reported: the tests find those that matter, and torch causes harmless ones.
  checked=("$found" --tool "$part" --error-exitcode 1 --report-api-errors no --kernel-name kns=fwp "$python")
  limited "${checked[@]}" -c 'import torch; torch.ones(9, device="cuda").sum().item()' ||
    fail "$part: compute-sanitizer cannot attach to this device, as in some virtual machines"
  tests 360 "${checked[@]}" -m pytest -v -x -k "$few"
}

timed() {  # seconds that it may use, program, its arguments
  # 30 seconds are kept for starting, and for finishing the measurement that is running at the end.
  limited "$python" -m "benchmarks.$2" --device cuda --time-limit $(($1 > 60 ? $1 - 30 : 30)) \
    ${record:+--record "$record"} "${@:3}"
}
shapes='^(forward|both)-bfloat16-.*-(1024x(32|64|128)-256|64x(1024|4096)-256)$'
check_compare() {
  local archive
  mkdir "$site/earlier"
  for archive in .gpu/earlier-*.tgz; do
    [ -e "$archive" ] || fail "compare: .gpu has no earlier-COMMIT.tgz, which the part earlier makes"
    tar xzf "$archive" -C "$site/earlier" || return
  done
  timed $((limit - SECONDS)) attention --only "$shapes" --against softmax --earlier "$site/earlier"
}
check_peers() { timed $((limit - SECONDS)) attention --only "$shapes" --against softmax,fla,fla-mapped,fla-mapped-eager; }
check_decoding() { timed $((limit - SECONDS)) decoding_length --threads 4; }
check_profile() { timed $((limit - SECONDS)) training --only '^big-wmt$' --threads 4 --profile; }
check_models() {  # four threads, because the reference in float64 runs on the CPU
  local status=0
  timed $(((limit - SECONDS) * 3 / 5)) training --only '^big-wmt$' --threads 4 || status=$?
  timed $((limit - SECONDS)) decoding --only '^big-wmt$' --threads 4 || status=$?
  return "$status"
}

[ "$part" = earlier ] || build || fail "$part: the build failed"
case $part in
  build) ;;
  memcheck | racecheck | synccheck) check_sanitizer ;;
  benchmark) timed $((limit - SECONDS)) attention --against softmax,torch ;;
  *) "check_$part" ;;
esac || fail "$part: failed after $SECONDS s"
echo "=== $part: passed after $SECONDS s"
