"""Usage: spill_budget.py BYTES nvcc ... -Xptxas=-v ...

Runs the compiler and fails if a kernel keeps more than BYTES of its registers in memory ("spills"), on any
architecture, or has a barrier and reads global memory by loads that need not see what was written before it
(ld.global.nc). What kernels call apart (LS_DEVICE_APART), because they do it once, does not count. CMake puts
it in front of nvcc if LEARNSOLVE_SPILL_BUDGET is set.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

FUNCTION = re.compile(r"(?:Function properties for|Compiling entry function) '?([^']+)'?(?: for '(\w+)')?")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def over_budget(output: str, budget: int) -> list[str]:
    """A line for each kernel that spills more than `budget` bytes."""
    name, architecture, kernel, found = "?", "?", "?", []
    for line in output.splitlines():
        if match := FUNCTION.search(line):
            name, architecture = match[1].strip(), match[2] or architecture
            kernel = name if match[2] else kernel
        elif match := SPILLS.search(line):
            stored = int(match[2])
            if stored > budget and name == kernel:
                found.append(
                    f"{stored} bytes of registers are spilled, more than {budget}: {name} ({architecture})"
                )
    return found


def incoherent(ptx: str) -> list[str]:
    """A line for each kernel that has a barrier and non-coherent loads."""
    kernels = [(text.split("(", 1)[0].strip(), text) for text in ptx.split(".entry ")[1:]]
    return [
        f"waits, and loads by ld.global.nc: {name}"
        for name, text in kernels
        if "ld.global.nc" in text and ("bar.sync" in text or "barrier.sync" in text)
    ]


def main() -> int:
    budget, command = int(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "--keep", "--keep-dir", folder], capture_output=True, text=True, check=False
        )
        loads = [line for file in Path(folder).glob("*.ptx") for line in incoherent(file.read_text())]
    sys.stdout.write(done.stdout)
    said = [line for line in done.stderr.splitlines() if not line.startswith(("ptxas info", "    "))]
    if done.returncode or said:
        sys.stderr.write(done.stderr)
    wrong = over_budget(done.stdout + done.stderr, budget) + loads
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return done.returncode or bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
