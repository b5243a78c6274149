"""A step of scripts/gpu.py: the probes of benchmarks/probes, compiled and run one after another.

Their tables are written to probes-DEVICE.json beside the other results. In a rehearsal those that check their
results run on the emulator (csrc/emulator), on one small matrix; their times then mean nothing.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import sysconfig
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpu_machine
from gpu_parts import ROOT, Step, end_of, run
from gpu_steps import Plan

FOLDER = ROOT / "benchmarks" / "probes"
MOST = 120  # seconds of a probe
OF_A_REHEARSAL = "5 points, small"
# Of one launch of each kernel, from the hardware's counters: what the models of docs/cuda.md count.
COUNTED = ("tile_sum_kernel", "tile_kernel", "mask_kernel")
COUNTERS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum",
)


def command(plan: Plan, name: str) -> list[str]:
    """That compiles the probe."""
    out = ["-o", str(plan.folder / name), "-I", str(ROOT / "csrc"), "-std=c++20"]
    source = str(FOLDER / f"{name}.cu")
    if plan.rehearsal:
        emulator = str(ROOT / "csrc" / "emulator" / "emulator.cpp")
        compiler = os.environ.get("CXX", "c++")
        return [compiler, *out, "-Wno-unknown-pragmas", "-x", "c++", source, emulator]
    capability = plan.facts["capability"]
    architecture = f"-gencode=arch=compute_{capability},code=sm_{capability}"
    return [plan.facts["nvcc"], *out, "-O3", architecture, "-cudart", "static", source, "-ldl"]


def table(output: str) -> dict:
    """What a probe printed: notes, columns and rows, in which numbers are numbers."""
    lines = output.splitlines()
    told = [line.strip() for line in lines if line.strip() and not line.startswith("|")]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ") and line.endswith("|")
    ]
    return {
        "about": told,
        "columns": rows[0] if rows else [],
        "rows": [[number(cell) for cell in row] for row in rows[1:]],
    }


def number(cell: str) -> float | str | None:
    try:
        value = float(cell)
    except ValueError:
        return cell
    return value if value == value else None  # JSON has no NaN


def counters(plan: Plan, name: str, libraries: str, end: float) -> dict[str, dict[str, str]]:
    """By kernel and counter, as ncu prints them; nothing without ncu."""
    ncu = gpu_machine.tool("ncu")
    found: dict[str, dict[str, str]] = {}
    for kernel in COUNTED if ncu and not plan.rehearsal else ():
        line = [ncu, "--clock-control", "none", "--kill", "yes", "-c", "1", "-k", f"regex:{kernel}"]
        line += ["--metrics", ",".join(COUNTERS), str(plan.folder / name), "5 points"]
        _, output = run(
            line, min(40, end - time.monotonic()), plan.folder / f"{kernel}.log", LD_LIBRARY_PATH=libraries
        )
        words = [text.split() for text in output.splitlines()]
        found[kernel] = {w[0]: f"{w[2]} {w[1]}" for w in words if len(w) == 3 and w[0] in COUNTERS}
    return found


def probes(plan: Plan, limit: float) -> Step:
    """All of them; what one printed before it failed or took too long stays."""
    start = time.monotonic()
    end, notes = start + limit, []
    plan.folder.mkdir(parents=True, exist_ok=True)
    names = ["products", "backward", "triangular"]
    names = names if plan.rehearsal else ["ceilings", *names]

    def compile_it(name: str) -> tuple[int, str]:
        return run(command(plan, name), end - time.monotonic(), plan.folder / f"{name}-build.log")

    with ThreadPoolExecutor() as pool:
        built = dict(zip(names, pool.map(compile_it, names), strict=True))
    libraries = [*glob.glob(f"{sysconfig.get_path('purelib')}/nvidia/*/lib"), "/usr/local/cuda/lib64"]
    path = os.pathsep.join(libraries)  # where cuSPARSE is
    record: dict = {"gpu": plan.facts["device"], "probes": {}, "counters": {}}
    states: Counter[str] = Counter()
    for name in names:
        code, output = built[name]
        if code == 0:
            line = [str(plan.folder / name), *([OF_A_REHEARSAL] if plan.rehearsal else [])]
            most = min(MOST, end - time.monotonic())
            code, output = run(line, most, plan.folder / f"{name}.log", LD_LIBRARY_PATH=path)
            record["probes"][name] = made = table(output)
            states.update(row[-1] for row in made["rows"] if "state" in made["columns"])
            notes += [
                f"{name}: {row}" for row in made["rows"] if "state" in made["columns"] and row[-1] != "right"
            ]
        if code != 0:
            states["failed"] += 1
            notes.append(f"{name}: ended with {code}: {' | '.join(end_of(output, 3))}")
    if built["products"][0] == 0:
        record["counters"] = counters(plan, "products", path, end)
    (plan.folder / "probes.json").write_text(json.dumps(record, indent=1) + "\n")
    ok = states["right"] > 0 and set(states) == {"right"}
    what = ", ".join(f"{count} {state}" for state, count in states.most_common())
    return Step("probes", ok, time.monotonic() - start, what or "nothing ran", notes)


def keep(plan: Plan, out: Path) -> None:
    """The tables beside the results of the other steps."""
    made = plan.folder / "probes.json"
    if made.exists():
        shutil.copy(made, out.with_name(out.name.replace("gpu-", "probes-", 1)))
