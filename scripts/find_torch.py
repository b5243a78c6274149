"""Print what CMake needs to know about torch: folder; major; minor; compute capabilities of visible devices.

The torch of the environment that the library is installed into, also from an isolated build, which hides it.
Several places are asked, in this order, each by running its Python:

- the one named by LEARNSOLVE_TORCH_PYTHON (of any version: headers do not depend on it);
- the Python that builds, with and without pip's PYTHONPATH: pip isolates by that variable alone;
- the active environment and the processes that started the build: `python -m build` and uv isolate by an
  environment of their own;
- the base installation.

All but the first must have the version of the Python that builds.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROPERTIES = """
import importlib.util, runpy, sys
wanted = sys.argv[1:]
if wanted and sys.version_info[:2] != tuple(map(int, wanted)):
    sys.exit(1)
spec = importlib.util.find_spec("torch")
if spec is None or not spec.submodule_search_locations:
    sys.exit(1)
root = spec.submodule_search_locations[0]
version = runpy.run_path(root + "/version.py")
capabilities = set()
if version["cuda"]:  # a CPU build need not be imported
    from torch import cuda
    devices = range(cuda.device_count() if cuda.is_available() else 0)
    capabilities = {"%d%d" % cuda.get_device_capability(i) for i in devices}
print(";".join([root, *version["__version__"].split(".")[:2], *sorted(capabilities)]))
"""


def ask(python: str, *options: str, version: tuple[int, ...]) -> str | None:
    """The facts about this Python's torch; None if it has none or is of another version."""
    try:
        done = subprocess.run(
            [python, *options, "-c", PROPERTIES, *map(str, version)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else None


def ancestors() -> Iterator[str]:
    """The Pythons among the processes that started this one, and their active environments (Linux)."""
    process = os.getppid()
    while process > 1:
        folder = Path("/proc", str(process))
        try:
            command = folder.joinpath("cmdline").read_bytes().split(b"\0")[0].decode()
            variables = folder.joinpath("environ").read_bytes().split(b"\0")
            here = folder.joinpath("cwd").readlink()
            process = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return
        if Path(command).name.startswith("python") and "/" in command:
            yield str(here / command)
        for name in (b"VIRTUAL_ENV=", b"CONDA_PREFIX="):
            for value in variables:
                if value.startswith(name):
                    yield f"{value.removeprefix(name).decode()}/bin/python"


def places() -> Iterator[tuple[str, ...]]:
    """Pythons to ask, with their options."""
    yield (sys.executable,)
    yield sys.executable, "-E", "-P"
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if prefix := os.environ.get(name):
            yield f"{prefix}/bin/python", "-E", "-P"
    for python in ancestors():
        yield python, "-E", "-P"
    yield f"{sys.base_prefix}/bin/python3", "-E", "-P"


def main() -> int:
    if named := os.environ.get("LEARNSOLVE_TORCH_PYTHON"):
        if facts := ask(named, version=()):
            print(facts)
            return 0
        print(f"LEARNSOLVE_TORCH_PYTHON={named} is no Python that has torch.", file=sys.stderr)
        return 1
    for place in dict.fromkeys(places()):
        if facts := ask(*place, version=sys.version_info[:2]):
            print(facts)
            return 0
    print(
        f"No torch found for {sys.executable}: install it first (pip install 'torch>=2.10'); if it is "
        "installed, this isolated build cannot see it: build with --no-build-isolation.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
