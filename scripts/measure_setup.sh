#!/bin/sh
# Usage: scripts/measure_setup.sh [FOLDER]
# Seconds of what a newcomer does: `make train` in a fresh clone with a new virtual environment, set-up after
# an edit of a kernel, import, the command line's help. Run it on an otherwise idle machine. FOLDER, which must
# not exist, receives the clone and stays; without it a temporary one is removed at the end.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd -P)
if [ -n "${1-}" ]; then
  folder=$1
else
  folder=$(mktemp -d)/learnsolve
  trap 'rm -rf "$(dirname "$folder")"' EXIT
fi
git clone -q "$here" "$folder"
cd "$folder"
log=$(mktemp)
measure() { # what, limit in seconds, command...
  what=$1 limit=$2
  shift 2
  start=$(date +%s.%N)
  "$@" >"$log" 2>&1 || {
    cat "$log"
    echo "failed: $what" >&2
    exit 1
  }
  echo "$start $(date +%s.%N)" | awk -v what="$what" -v limit="$limit" \
    '{ printf "%-58s %7.1f s   (at most %s)\n", what, $2 - $1, limit }'
}
python=.venv/bin/python
unset PYTHONDONTWRITEBYTECODE # as most people have it: the second import of a file is faster than the first
measure "make train, fresh clone" 180 make train
measure "make setup, nothing changed" 2 make setup
measure "make test, no rebuild (--collect-only)" 30 make test ARGS="--collect-only -q -n 0"
for header in products sweeps triangular sparse_products; do
  echo "// edited" >>"csrc/kernels/$header.h"
  measure "make setup, csrc/kernels/$header.h edited" 30 make setup
done
$python -m learnsolve.train jacobi --help >"$log"
measure "import torch, scipy.sparse.linalg" - $python -c "import torch, scipy.sparse.linalg"
measure "import learnsolve besides (0.3 s more)" - $python -c "import torch, scipy.sparse.linalg, learnsolve"
measure "python -m learnsolve.train jacobi --help" 3 $python -m learnsolve.train jacobi --help
