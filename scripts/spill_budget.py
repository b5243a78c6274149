"""Usage: spill_budget.py BYTES nvcc ... -Xptxas=-v ...

Runs the compiler and fails if a kernel keeps more than BYTES of its registers in memory ("spills"), on any
architecture, or has a barrier and reads global memory by loads that need not see what was written before it
(ld.global.nc). What kernels call apart (LS_DEVICE_APART), because they do it once, does not count. Prints
registers, spills, and loads and stores of 16 bytes of the products with several columns, and fails if one
that writes packs has no such store: nvcc takes stores apart, and the emulator does not show it. CMake puts it
in front of nvcc if LEARNSOLVE_SPILL_BUDGET is set.
"""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

FUNCTION = re.compile(r"(?:Function properties for|Compiling entry function) '?([^']+)'?(?: for '(\w+)')?")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
COLUMNS = re.compile(r"columns_kernelILi\d+ELi(\d+)ELb([01])ELb[01]E\w\w")  # <Lanes, V, Sum, Dot, T, I>


@dataclass
class Kernel:
    name: str
    architecture: str
    spilled: int = 0
    registers: int = 0


def kernels(output: str) -> list[Kernel]:
    name, found = "", [Kernel("?", "?")]
    for line in output.splitlines():
        if match := FUNCTION.search(line):
            name = match[1].strip()
            if match[2]:
                found.append(Kernel(name, match[2]))
        elif name == found[-1].name:
            if match := SPILLS.search(line):
                found[-1].spilled = int(match[2])
            elif match := USED.search(line):
                found[-1].registers = int(match[1])
    return found[1:]


def over_budget(found: list[Kernel], budget: int) -> list[str]:
    """A line for each kernel that spills more than `budget` bytes."""
    return [
        f"{k.spilled} bytes of registers are spilled, more than {budget}: {k.name} ({k.architecture})"
        for k in found
        if k.spilled > budget
    ]


def entries(ptx: str) -> list[tuple[str, str]]:
    """The name and the text of each kernel."""
    return [(text.split("(", 1)[0].strip(), text) for text in ptx.split(".entry ")[1:]]


def of_columns(found: list[Kernel], ptx: str) -> tuple[list[str], list[str]]:
    """A line for each product with several columns, and one for those that store packs number by number."""
    said, wrong = [], []
    for name, text in entries(ptx):
        if not (match := COLUMNS.search(name)):
            continue
        wide = r"\.global\S*\.v(4\.\w32|2\.\w64)\b"
        loads, stores = (len(re.findall(way + wide, text)) for way in ("ld", "st"))
        for k in found:
            if k.name == name and f".target {k.architecture}\n" in ptx:
                said.append(
                    f"{match[0]}: {k.registers} registers, {k.spilled} bytes spilled, "
                    f"of 16 bytes {loads} loads and {stores} stores ({k.architecture})"
                )
        if not stores and match[1] != "1" and match[2] == "1":
            wrong.append(f"has no store of 16 bytes: {name}")
    return said, wrong


def incoherent(ptx: str) -> list[str]:
    """A line for each kernel that has a barrier and non-coherent loads."""
    return [
        f"waits, and loads by ld.global.nc: {name}"
        for name, text in entries(ptx)
        if "ld.global.nc" in text and ("bar.sync" in text or "barrier.sync" in text)
    ]


def main() -> int:
    budget, command = int(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, "--keep", "--keep-dir", folder], capture_output=True, text=True, check=False
        )
        texts = [file.read_text() for file in Path(folder).glob("*.ptx")]
    sys.stdout.write(done.stdout)
    said = [line for line in done.stderr.splitlines() if not line.startswith(("ptxas info", "    "))]
    if done.returncode or said:
        sys.stderr.write(done.stderr)
    found = kernels(done.stdout + done.stderr)
    wrong = over_budget(found, budget)
    for text in texts:
        columns, apart = of_columns(found, text)
        wrong += incoherent(text) + apart
        print("\n".join(columns), end="\n" * bool(columns))
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return done.returncode or bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
