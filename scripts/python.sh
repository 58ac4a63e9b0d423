#!/usr/bin/env bash
# Prints the interpreter that recipes run with: see --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv

usage() {
  cat <<EOF
usage: scripts/python.sh [--no-install] [--help]

Prints the Python interpreter that runs the recipes, and on standard error the name of its environment. This is the
active environment (\$PYTHON, or python or python3 on the PATH) if it has the packages that the recipes need, else .venv
at the repository root, which scripts/environment.sh makes or brings up to date first.

  --no-install     install nothing; if .venv would be needed, print its interpreter, or the one it would be made with
EOF
}

# Prints the active interpreter if scripts/common/packages.py finds all packages; errors of an unsuitable Python are hidden.
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
# If the active environment is the .venv that scripts/environment.sh made, that script has to bring it up to date.
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
