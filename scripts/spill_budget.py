"""Usage: spill_budget.py BYTES nvcc ... -Xptxas=-v ...

Runs the compiler and fails if a kernel keeps more than BYTES of its registers in memory ("spills"), on any
architecture. CMake puts it in front of nvcc if LEARNSOLVE_SPILL_BUDGET is set.
"""

import re
import subprocess
import sys

FUNCTION = re.compile(r"(?:Function properties for|Compiling entry function) '?([^']+)'?(?: for '(\w+)')?")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def over_budget(output: str, budget: int) -> list[str]:
    """A line for each kernel that spills more than `budget` bytes."""
    name, architecture, found = "?", "?", []
    for line in output.splitlines():
        if match := FUNCTION.search(line):
            name, architecture = match[1].strip(), match[2] or architecture
        elif match := SPILLS.search(line):
            stored = int(match[2])
            if stored > budget:
                found.append(
                    f"{stored} bytes of registers are spilled, more than {budget}: {name} ({architecture})"
                )
    return found


def main() -> int:
    budget, command = int(sys.argv[1]), sys.argv[2:]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout)
    said = [line for line in done.stderr.splitlines() if not line.startswith(("ptxas info", "    "))]
    if done.returncode or said:
        sys.stderr.write(done.stderr)
    wrong = over_budget(done.stdout + done.stderr, budget)
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return done.returncode or bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
