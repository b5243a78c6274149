#!/bin/sh
# Usage: scripts/setup.sh [VENV]
# Makes the virtual environment VENV, installs pinned dependencies (constraints.txt) and compiles
# learnsolve into it. Without VENV it builds for the active environment and keeps the torch there.
# What is done already is not done again: a stamp in VENV (or in build/) remembers it.
set -eu
cd "$(dirname "$0")/.."
venv=${1-}

fail() {
  printf '%s\n' "$*" >&2
  exit 1
}
say() { printf '== %s\n' "$*"; }
fingerprint() { find "$@" -path csrc/tests -prune -o -type f -exec cksum {} + | LC_ALL=C sort | cksum; }
known() { [ -x "$(command -v "$python")" ] && [ -f "$stamp" ] && grep -qxF -- "$1" "$stamp"; }
# Value of a Python expression; importing torch itself would take seconds.
ask() { "$1" -c "import sys, sysconfig; from importlib.metadata import version; print($2)" 2>/dev/null; }

if [ -n "$venv" ]; then
  python=$venv/bin/python
  stamp=$venv/.learnsolve
  environment=$venv
else
  python=${PYTHON:-python3}
  stamp=build/.learnsolve
  torch=$(ask "$python" 'version("torch")') ||
    fail "VENV= builds for the active environment, but its $python has no torch: install it there" \
      "(pip install 'torch>=2.10'), or leave VENV= out to get a new environment."
  [ "$(ask "$python" 'tuple(map(int, version("torch").split(".")[:2])) >= (2, 10)')" = True ] ||
    fail "VENV= builds for the active environment, but learnsolve needs torch >= 2.10 and finds $torch there:" \
      "upgrade it (pip install 'torch>=2.10'), or leave VENV= out to get a new environment."
  environment="$(ask "$python" sys.prefix) torch $torch"
fi

# --- Is it done already? ---
# What is compiled is chosen by variables (CONTRIBUTING.md). A choice holds until another is made: a variable that
# is not set means as before, an empty one the default.
choices=choices:
for name in LEARNSOLVE_CUDA LEARNSOLVE_CUDA_ARCHITECTURES LEARNSOLVE_CUDA_EMULATOR LEARNSOLVE_ISA_VARIANTS; do
  if eval "[ -z \"\${$name+set}\" ]"; then
    export "$name=$(sed -n "s/^choices:.* $name=\([^ ]*\).*/\1/p" "$stamp" 2>/dev/null || :)"
  fi
  choices="$choices $name=$(printenv "$name" || :)"
done
place="place: $(pwd -P), $environment, CXX=${CXX-}"
# An editable installation remembers which modules there are.
modules=$(find learnsolve -name '*.py' | LC_ALL=C sort | cksum)
dependencies="dependencies: $(fingerprint pyproject.toml constraints.txt), modules $modules"
sources="sources: $(fingerprint pyproject.toml CMakeLists.txt csrc)"
same_place=no
known "$place" && known "$choices" && same_place=yes
known "$dependencies" && same_dependencies=yes || same_dependencies=no
known "$sources" && same_sources=yes || same_sources=no
[ "$same_place $same_dependencies $same_sources" = "yes yes yes" ] && exit 0

# --- Is everything there that pip cannot install? ---
if [ -z "$venv" ] || "$python" -c 'import pip' 2>/dev/null; then
  base=$python
else
  base=
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    [ "$(ask "$candidate" 'sys.version_info >= (3, 11)')" = True ] && base=$candidate && break
  done
  [ -n "$base" ] ||
    fail "learnsolve needs Python 3.11 or newer and ${PYTHON:-python3} is" \
      "$(ask "${PYTHON:-python3}" '"Python %d.%d" % sys.version_info[:2]' || echo missing): install it" \
      "(Debian/Ubuntu: apt install python3 python3-venv python3-dev), or name one with PYTHON=/path/to/python3."
fi
release=$(ask "$base" '"python%d.%d" % sys.version_info[:2]')
if [ "$base" != "$python" ]; then
  "$base" -c 'import venv; from ensurepip import version' 2>/dev/null ||
    fail "learnsolve needs Python's venv module: install $release-venv (Debian/Ubuntu: apt install $release-venv)."
fi
compiler=
for candidate in "${CXX:-c++}" ${CXX:-g++ clang++}; do
  $candidate --version >/dev/null 2>&1 && compiler=$candidate && break
done
[ -n "$compiler" ] || fail "learnsolve needs a C++ compiler${CXX:+, and CXX=$CXX is none}: install g++" \
  "(Debian/Ubuntu: apt install g++)."
printf '#include <concepts>\n#include <vector>\n' | $compiler -std=c++20 -fsyntax-only -x c++ - 2>/dev/null ||
  fail "learnsolve needs a C++20 compiler with its standard library, and $compiler is none: install g++ 12 or" \
    "newer (Debian/Ubuntu: apt install g++)."
[ -f "$(ask "$base" 'sysconfig.get_path("include")')/Python.h" ] ||
  fail "learnsolve needs the headers of Python: install $release-dev (Debian/Ubuntu: apt install $release-dev)."

# --- Do it. ---
# CMake remembers compilers and folders: a build for another place starts from nothing.
[ $same_place = yes ] || rm -rf build
pip() { "$python" -m pip --disable-pip-version-check "$@"; }
if [ "$base" != "$python" ]; then
  say "Making the virtual environment $venv"
  [ ! -e "$venv" ] || rmdir "$venv" 2>/dev/null || [ -f "$venv/pyvenv.cfg" ] ||
    fail "$venv is there already and is no virtual environment: move it away or choose another folder with VENV=."
  "$base" -m venv --clear "$venv"
fi
# Until all is done the stamp holds the choices alone.
mkdir -p "$(dirname "$stamp")"
printf '%s\n' "$place" "$choices" >"$stamp"
# CPU seconds: about 100 for an instruction set, 250 for a CUDA architecture of those asked for.
work=110
[ "$LEARNSOLVE_ISA_VARIANTS" != all ] || work=300
named=$(echo "$LEARNSOLVE_CUDA_ARCHITECTURES" | tr ';' '\n' | grep -c . || :)
[ "$LEARNSOLVE_CUDA $named" != "1 0" ] || named=5
work=$((work + 250 * named))
about="$(((work / $(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2) + 59) / 60)) minutes"
[ "$about" != "1 minutes" ] || about="a minute"
packages=$(ask "$python" 'sysconfig.get_path("platlib")')
if [ "$same_place $same_dependencies" != "yes yes" ] || [ ! -f build/cp*/CMakeCache.txt ]; then
  set --
  if [ -n "$venv" ]; then
    set -- -c constraints.txt
    torch=$(grep '^torch==' constraints.txt)
    if [ "$(ask "$python" 'version("torch").split("+")[0]')" != "${torch#*==}" ]; then
      say "Installing $torch: the download (a few hundred MB, several GB with CUDA) and half a minute"
      pip install -q "$@" "$torch"
    fi
  fi
  say "Installing the other dependencies (half a minute) and compiling learnsolve ($about)"
  # The build runs without isolation, so that it sees this torch: what drives it comes first.
  pip install -q "$@" $(ask "$python" '*__import__("tomllib").load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["build"]')
  pip install -q --no-build-isolation "$@" -e '.[dev]' ||
    fail "learnsolve could not be installed into ${venv:-the active environment}; the reason is above."
else
  say "Compiling what has changed: at most $about"
  # As the installation did it, without pip's seven seconds.
  build=$(echo build/cp*)
  cmake=$(sed -n 's/^CMAKE_COMMAND:INTERNAL=//p' "$build/CMakeCache.txt")
  { "$cmake" --build "$build" && "$cmake" --install "$build" --prefix "$packages"; } >build/log 2>&1 ||
    { cat build/log && fail "learnsolve could not be compiled; the reason is above."; }
fi
printf '%s\n' "$place" "$choices" "$dependencies" "$sources" >"$stamp.new"
mv "$stamp.new" "$stamp"
[ -f "$packages/learnsolve/learnsolve_cuda.so" ] ||
  say "Without CUDA operators: torch sees no CUDA device here, or LEARNSOLVE_CUDA=0. LEARNSOLVE_CUDA=1 make setup" \
    "compiles them for all architectures; it needs nvcc."
