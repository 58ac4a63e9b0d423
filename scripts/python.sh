#!/usr/bin/env bash
# Prints the interpreter that recipes run with: see --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv

usage() {
  cat <<EOF
usage: scripts/python.sh [--no-install] [--help]

Prints the Python interpreter that the recipes run with, and says on standard error which environment that is: the
active one (\$PYTHON, or python or python3 on the PATH) when it has the packages that the recipes need, else .venv at the
repository root, which scripts/environment.sh makes or brings up to date first.

  --no-install     make nothing: without such an environment, the interpreter that .venv has or would be made with
EOF
}

# Whether it can serve is scripts/common/packages.py's to say, whose fault is nobody's on a Python that is not ours.
active() {
  local candidate found
  for candidate in ${PYTHON:+"$PYTHON"} python python3; do
    if found=$("$candidate" -m scripts.common.packages 2>/dev/null); then
      printf '%s\n' "$found"
      return
    fi
  done
  return 1
}

install=yes
case ${1:-} in
  -h | --help) usage; exit ;;
  --no-install) install=no ;;
  '') ;;
  *) usage >&2; printf 'error: unknown argument: %s\n' "$1" >&2; exit 2 ;;
esac

cd "$root"
# A .venv that scripts/environment.sh made is its to keep up to date, also when it is the active one.
if python=$(active) && ! { [ -f "$venv/fwp-stamp" ] && [ "${python#"$venv/"}" != "$python" ]; }; then
  if [ $install = yes ]; then printf 'environment: the active one, %s\n' "$python" >&2; fi
elif [ $install = yes ]; then
  scripts/environment.sh >&2
  python=$venv/bin/python
  printf 'environment: .venv\n' >&2
else
  python=$(scripts/environment.sh --print-python)
fi
printf '%s\n' "$python"
