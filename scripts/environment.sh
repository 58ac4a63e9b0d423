#!/usr/bin/env bash
# Makes .venv at the repository root, or brings it up to date; see --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
log=$venv/install.log
stamp=$venv/fwp-stamp
torch_wanted=${FWP_TORCH:-torch==2.13.0}
torch_cpu_index=https://download.pytorch.org/whl/cpu
fairseq_wanted=fairseq-fixed==0.12.3.1
fairseq_sha256=c607577a54ab30e2ee0f0b0a754ea5cdbc6ad0a9f99a1726638a2201445bc1cc # of its sources on PyPI

usage() {
  cat <<EOF
usage: scripts/environment.sh [--print-python] [--help]

Makes the virtual environment .venv at the repository root with torch, fairseq and this project in it (editable).
Needs Python 3.10 to 3.13, a C++ compiler and a package index. Takes 5 to 15 minutes the first time, 7 of them of one
processor, and no time if nothing has changed. Continues an interrupted installation.

  --print-python   only print the Python interpreter that would be used

environment variables
  PYTHON           interpreter to make .venv with (default: python3.12, python3.11, python3.13, python3.10, python3)
  FWP_TORCH        torch requirement (default: torch==2.13.0); a torch that .venv already has is kept
  FWP_BUILD        kernels to compile: auto (default: for the CPU, and for CUDA if torch sees a GPU), none, cpu, cuda
pip's own configuration (PIP_INDEX_URL, PIP_FIND_LINKS, ...) sets proxies, mirrors and further indexes.
EOF
}

say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Prints why the interpreter cannot be used, or nothing if it can. An interpreter that exists may still fail: a pyenv
# shim may lead nowhere, and Debian has separate packages for venv and for the headers, which fairseq compiles with.
objection() {
  "$1" - 2>/dev/null <<'EOF' || echo "does not run"
import importlib.util, os, sys, sysconfig
name = "Python %d.%d" % sys.version_info[:2]
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    print(name)
elif importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
    print(name + " without the venv module; on Debian and Ubuntu: apt install python3-venv")
elif not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print(name + " without its headers; on Debian and Ubuntu: apt install python3-dev")
EOF
}

choose_python() {
  local candidate problem found=() candidates=(python3.12 python3.11 python3.13 python3.10 python3)
  if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
  for candidate in "${candidates[@]}"; do
    command -v "$candidate" >/dev/null || continue
    problem=$(objection "$candidate")
    if [ -z "$problem" ]; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
    found+=("$candidate ($problem)")
  done
  local list="none"
  if [ ${#found[@]} -gt 0 ]; then list=$(printf '%s; ' "${found[@]}"); fi
  die "no usable Python: expected 3.10 to 3.13, found: ${list%; }. Set PYTHON to the one to use."
}

# Prints a digest of everything that the installation depends on; if it is unchanged, there is nothing to do.
key() {
  "$venv/bin/python" - "$root" "$torch_wanted" "${FWP_BUILD:-auto}" <<'EOF'
import hashlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
files = [root / "setup.py", root / "pyproject.toml", root / "scripts/environment.sh"]
files += sorted(path for path in (root / "csrc").rglob("*") if path.is_file())
digest = hashlib.sha256(repr([sys.version, sys.argv[1:]]).encode())
for path in files:
    digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
print(digest.hexdigest())
EOF
}

up_to_date() { [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ "$(key)" = "$(cat "$stamp")" ]; }

# Copies the output of a step to the log. Ninja's lines, such as "[3/10] c++ ...", become "3 of 10 sources compiled".
copy_and_show() {
  local line done all begin=$SECONDS said=$SECONDS
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    [[ $line =~ ^\ *\[([0-9]+)/([0-9]+)\] ]] || continue
    done=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
    if [ "$done" = 1 ]; then begin=$SECONDS; fi # another library, or the first source; what was before is no measure
    [ "$done" -gt 1 ] && [ "$done" -lt "$all" ] && [ $((SECONDS - said)) -ge 10 ] || continue
    said=$SECONDS
    printf '\n    %s of %s sources compiled, about %s s left ... ' \
      "$done" "$all" $(((SECONDS - begin) * (all - done) / (done - 1)))
  done
}

# step TEXT COMMAND...: runs the command with its output in the log, whose end is shown if the command fails.
step() {
  local text=$1 begin=$SECONDS
  shift
  printf '  %s ... ' "$text"
  printf '\n### %s\n+ %s\n' "$text" "$*" >>"$log"
  if "$@" </dev/null 9>&- 2>&1 | copy_and_show; then
    say "$((SECONDS - begin)) s"
    return
  fi
  say "failed"
  tail -n 40 "$log" >&2
  die "$text failed; the whole output is in $log. Run the same command again to continue."
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"; }
# complete MODULE DISTRIBUTION...: succeeds if the module and the metadata of a distribution are there. pip writes the
# metadata last, so an installation that was killed has none.
complete() {
  "$venv/bin/python" -c "import importlib.metadata as m, sys; import $1
sys.exit(not {d.metadata['Name'] for d in m.distributions()} & set(sys.argv[1:]))" "${@:2}" >/dev/null 2>&1
}

# Prints the option for torch's index of CPU builds if it can be reached; offline or behind a mirror, pip would only
# lose time by retrying it.
cpu_index() {
  [ "$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null || return 0
  "$venv/bin/python" - "$torch_cpu_index/torch/" <<'EOF' >/dev/null 2>&1 && say "--extra-index-url=$torch_cpu_index"
import os, ssl, sys, urllib.request
context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
urllib.request.urlopen(sys.argv[1], timeout=5, context=context)
EOF
  return 0
}

make_venv() {
  if [ -x "$venv/bin/python" ]; then
    local problem
    problem=$(objection "$venv/bin/python")
    [ -z "$problem" ] || die ".venv cannot be used: expected Python 3.10 to 3.13, actual: $problem. Remove $venv."
    # The commands in .venv/bin contain the absolute path of the folder for which they were made.
    if [ -f "$venv/bin/activate" ] && ! grep -qF "$venv" "$venv/bin/activate"; then
      die ".venv was made for another folder than $root. Remove $venv and run this again."
    fi
    if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then return; fi
  fi
  local python
  python=$(choose_python)
  step "virtual environment with $("$python" --version)" "$python" -m venv "$venv"
}

install() {
  local torch constraint=$venv/fwp-constraint.txt
  step "pip, setuptools, wheel" pip install --upgrade pip setuptools wheel
  if complete torch torch; then
    say "  torch $("$venv/bin/python" -c 'import torch; print(torch.__version__)') is there and kept"
  else
    # shellcheck disable=SC2046 # one option or none
    step "$torch_wanted (usually 1 to 3 minutes)" pip install "$torch_wanted" $(cpu_index)
  fi
  torch=$("$venv/bin/python" -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))')
  say "$torch" >"$constraint"
  step "numpy, cython, packaging, ninja" pip install -c "$constraint" numpy cython packaging ninja
  # --no-build-isolation: fairseq's setup.py imports torch, and an isolated build would download a CUDA one for it.
  # -u CUDA_HOME: if it is set, the build needs CUDA sources that the package does not contain.
  if complete fairseq fairseq-fixed fairseq; then
    say "  fairseq $("$venv/bin/python" -c 'import fairseq; print(fairseq.__version__)' 2>/dev/null) is there and kept"
  else
    say "$fairseq_wanted --hash=sha256:$fairseq_sha256" >"$venv/fwp-fairseq.txt"
    step "$fairseq_wanted (usually 2 to 4 minutes, it compiles)" \
      env -u CUDA_HOME "$venv/bin/python" -m pip --disable-pip-version-check --no-input \
      install --no-deps --no-build-isolation -r "$venv/fwp-fairseq.txt"
    step "what fairseq needs" pip install -c "$constraint" "$fairseq_wanted"
  fi
  # The extra `fairseq` is left out, because it would overwrite a fairseq that the user installed here.
  # -v shows what is compiled, for which devices and about how long that takes, and the compiler's messages.
  step "this project and its tools (usually 2 to 6 minutes, it compiles)" \
    pip install -v -c "$constraint" --no-build-isolation -e "$root[eval,dev,plot,cluster]"
  step "check" "$venv/bin/python" -c 'import torch, fairseq, fwp_fairseq, sacrebleu, sentencepiece, matplotlib, tqdm, pytest, xdist'
  local missing
  missing=$("$venv/bin/python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["reasons"].get("cpu") or "")' \
    "$root/fwp_fairseq/_build.json")
  if [ -n "$missing" ]; then say "  without compiled CPU kernels of this version: $missing; see $log"; fi
}

case ${1:-} in
  -h | --help) usage; exit ;;
  --print-python)
    if [ -x "$venv/bin/python" ]; then say "$venv/bin/python"; else choose_python; fi
    exit
    ;;
  '') ;;
  *) usage >&2; die "unknown argument: $1" ;;
esac

cd "$root"
if up_to_date; then exit; fi
if [ ! -x "$venv/bin/python" ]; then choose_python >/dev/null; fi
mkdir -p "$venv"
if command -v flock >/dev/null; then
  exec 9>"$venv/.lock"
  if ! flock -n 9; then
    say "another command is installing into .venv; waiting for it"
    flock 9
    if up_to_date; then exit; fi
  fi
fi

say "Setting up .venv (once; output in .venv/install.log)"
rm -f "$stamp"
make_venv
install
key >"$stamp.part"
mv "$stamp.part" "$stamp"
say "  .venv is ready after $((SECONDS / 60)) min $((SECONDS % 60)) s"
