#!/bin/sh
# Usage: scripts/petsc.sh COMMAND...   runs a command with petsc4py; python is that of build/petsc
#        scripts/petsc.sh test         runs the tests of learnsolve.petsc in 1, 2, 3 and 4 processes
# Sets up first, in seconds: Debian's packages if they are missing (as root), and an environment with a NumPy before 2,
# which they were compiled for, on top of .venv, whose other packages run with it. PETSC_DIR, if it is set, names
# another PETSc with petsc4py.
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
debian=/usr/lib/petscdir/petsc3.18/x86_64-linux-gnu-real
[ -n "${PETSC_DIR:-}" ] || PETSC_DIR=$debian
export PETSC_DIR

if [ ! -d "$PETSC_DIR/lib/python3/dist-packages/petsc4py" ]; then
  if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "scripts/petsc.sh: no petsc4py in PETSC_DIR=$PETSC_DIR; on Debian 12, as root: apt-get install" \
      "--no-install-recommends python3-petsc4py" >&2
    exit 1
  fi
  echo "== Installing Debian's python3-petsc4py (42 MB)"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-petsc4py >/dev/null
fi

own=build/petsc
release=$("$venv/bin/python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
packages=$own/lib/$release/site-packages
if [ ! -f "$packages/learnsolve-petsc.pth" ]; then
  "$venv/bin/python" -m venv --clear "$own"
  "$own/bin/python" -m pip --disable-pip-version-check install -q --no-deps 'numpy>=1.26,<2'
  # site.addsitedir, so that an editable learnsolve in it is found too.
  "$venv/bin/python" -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("platlib"))' \
    >"$packages/learnsolve-petsc.pth"
fi
PYTHONPATH=$PETSC_DIR/lib/python3/dist-packages${PYTHONPATH:+:$PYTHONPATH}
PATH=$PWD/$own/bin:$PATH
# pypardiso looks for MKL beside the python that runs it.
for mkl in "$PWD/$venv"/lib/libmkl_rt.so*; do
  [ ! -e "$mkl" ] || export PYPARDISO_MKL_RT="${PYPARDISO_MKL_RT:-$mkl}"
done
export PYTHONPATH PATH OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"
# More processes than cores, and by root in containers.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
if [ "${1:-}" != test ]; then
  exec "$@"
fi
shift
for processes in 1 2 3 4; do
  echo "== $processes processes"
  timeout -k 5 120 mpirun -n $processes python tests/petsc/run.py "$@"
done
