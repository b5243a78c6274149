"""Instructions of the small calls of calls.py, which repeat exactly where times are noise.

    python -m benchmarks.instructions          fails where a count is more than 10 % above the committed one
    python -m benchmarks.instructions --write  commit the counts of this machine instead

One process under valgrind, which counts only where it is told to: half a minute, nearly all of it the import
of torch. valgrind knows no AVX-512: the kernels need a build with LEARNSOLVE_ISA_VARIANTS=all, as CI has it.
Counts of another Python, torch or C library are other counts, and are not compared.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import learnsolve as ls
from benchmarks import ROOT
from benchmarks.calls import cases

FILE = ROOT / "benchmarks" / "results" / "instructions.json"
MOST = 1.1  # of the committed count
NUMBER, WARM = 20, 20  # of calls for a count, and of those before


def missing() -> str:
    """Why nothing can be counted here; "" if it can."""
    if shutil.which("valgrind") is None:
        return "valgrind is not installed (apt install valgrind)"
    return "" if _usable() else "valgrind knows no AVX-512; build with LEARNSOLVE_ISA_VARIANTS=all"


def _usable() -> list[str]:
    return [name for name in ls.config()["instruction_sets"] if name != "x86-64-v4"]


def versions() -> dict[str, str]:
    """What a count depends on, beside this library."""
    return {
        "torch": torch.__version__,
        "python": f"{platform.python_version()}, {platform.python_compiler()}",
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "instruction_set": (_usable() or [""])[-1],
    }


def counts() -> dict[str, float]:
    """Instructions of a call, by case."""
    with TemporaryDirectory() as folder:
        environment = os.environ | {
            "LEARNSOLVE_ISA": _usable()[-1],
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        out = Path(folder, "counts")
        marks = ("--instr-atstart=no", "--collect-atstart=no", f"--callgrind-out-file={out}")
        command = ("valgrind", "--tool=callgrind", *marks, sys.executable, "-m", __spec__.name, "--count")
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"counting failed:\n{done.stdout}{done.stderr}")
        names = ("nothing", *cases())
        found = [_total(Path(f"{out}.{i}")) / NUMBER for i in range(1, len(names) + 1)]
    return {name: count - found[0] for name, count in zip(names[1:], found[1:], strict=True)}


def _total(dump: Path) -> int:
    """Of what was counted between two marks."""
    return next(int(line.split()[1]) for line in dump.read_text().splitlines() if line.startswith("totals:"))


def _count() -> None:
    """Runs under valgrind: a dump for the calls of nothing and of each case."""
    every = [lambda: None, *cases().values()]
    for f in every:
        for _ in range(WARM):
            f()
    subprocess.run(("callgrind_control", "-i", "on", str(os.getpid())), check=True)
    gc.collect()
    gc.disable()
    for f in every:
        f()
        torch._C._valgrind_toggle()
        for _ in range(NUMBER):
            f()
        torch._C._valgrind_toggle_and_dump_stats()


def exceeding(found: dict[str, float], committed: dict[str, float]) -> list[str]:
    """What to say of cases that need more than they may, or that have no committed count."""
    said = []
    for name, count in found.items():
        if name not in committed:
            said.append(f"{name}: has no committed count")
        elif count > MOST * committed[name]:
            said.append(f"{name}: {count:,.0f} instructions, committed are {committed[name]:,.0f}")
    return said


def main(argv: list[str]) -> int:
    if argv == ["--count"]:
        _count()
        return 0
    if reason := missing():
        print(f"no instruction counts: {reason}")
        return 0
    here = versions()
    known = json.loads(FILE.read_text()) if FILE.exists() else {"versions": None, "counts": {}}
    if argv != ["--write"] and known["versions"] != here:
        print(
            f"instruction counts are not compared: committed are those of {known['versions']}, this is {here}"
        )
        return 0
    found = counts()
    for name, count in found.items():
        before = known["counts"].get(name)
        print(f"{name:<34}{count:>12,.0f}" + (f"{count / before - 1:>+9.1%}" if before else ""))
    if argv == ["--write"]:
        rounded = {name: round(count) for name, count in found.items()}
        FILE.write_text(json.dumps({"versions": here, "counts": rounded}, indent=1) + "\n")
        return 0
    said = exceeding(found, known["counts"])
    for line in said:
        print(line)
    if said:
        print("if that is meant: python -m benchmarks.instructions --write, and commit the file")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
