"""Build, test, check and measure on the CUDA device of this machine: `make gpu` (docs/cuda.md).

    python scripts/gpu.py [--only look,build,smoke,sanitizer,tests,probes,bench] [--sections spmv,pcg]
        [--prebuilt learnsolve_cuda.so] [--seconds 0.2] [--minutes 60] [--results FOLDER] [--folder FOLDER]
        [--rehearse]

Uses the Python that runs it, with its torch, and installs nothing into it: learnsolve goes into
build/gpu/site. Needs no network. First contact goes in six calls, each of less than ten minutes:

    --only look,build           what is here; the operators, compiled for this device or taken from --prebuilt
    --only smoke                every kind of kernel; after a CUDA error a new process goes on
    --only memcheck,racecheck   the same cases under compute-sanitizer; then initcheck and synccheck
    --only tests                after a CUDA error they go on in a new process
    --only probes               ceilings of the device, variants of products (benchmarks/probes)
    --only bench                what decides most comes first; --sections chooses

A failed step does not stop the others. Results are written after each: to gpu-DEVICE.json, gpu-DEVICE.md and
probes-DEVICE.json in benchmarks/results, and with all logs to build/gpu/results.tar.gz; steps that another
call ran stay, until the next build. --rehearse goes through all steps on the emulator, without a device, with
little in each. Exit code: 0 on success, 1 if a step failed, 2 if nothing could be run here.
"""

from __future__ import annotations

import argparse
import functools
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("numpy", "scipy", "pytest", "pybind11", "scikit_build_core", "pip")
MOST_PROCESSES = 20  # for one part
AT_A_TIME = max(2, min(16, os.cpu_count() or 2))  # processes on the device
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")

# Tests of device features: streams, graphs, waits, bits. And tests shared with the CPU, with their tensors on
# the device (tests/pretend_device.py).
ABOUT_THE_DEVICE = tuple(sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("tests/*/test_cuda*.py")))
ON_THE_DEVICE = """
    tests/ops/test_contract.py tests/ops/test_incomplete.py::test_third_derivatives
    tests/ops/test_incomplete.py::test_compile_with_a_shift
    tests/ops/test_incomplete.py::test_second_derivatives_on_larger_patterns tests/ops/test_products.py
    tests/ops/test_spgemm.py tests/ops/test_stencil.py tests/matrix/test_csr.py
    tests/nn/test_nn.py::test_matrix_follows_its_module tests/nn/test_nn.py::test_state_copies_and_pickles
    tests/nn/test_nn.py::test_matrix_is_a_copy_with_gradients
    tests/preconditioners/test_factors.py::test_the_inverses_of_the_blocks
    tests/preconditioners/test_factors.py::test_missing_entries_are_zeros_and_need_no_diagonal
    tests/preconditioners/test_relaxation.py::test_formula
    tests/preconditioners/test_relaxation.py::test_neumann
    tests/preconditioners/test_relaxation.py::test_the_default_interval_is_safe
    tests/preconditioners/test_relaxation.py::test_coefficients_for_another_matrix
    tests/preconditioners/test_preconditioner_contract.py tests/preconditioners/test_trainable.py
    tests/solvers/test_krylov.py::test_gradients_are_those_of_dense_algebra
    tests/solvers/test_krylov.py::test_derivatives_of_the_iterations
    tests/solvers/test_krylov.py::test_transformations
    tests/solvers/test_krylov.py::test_columns_that_stopped_leave_finite_gradients
    tests/solvers/test_krylov.py::test_no_cycles_and_no_graph_that_nobody_asked_for
    tests/solvers/test_stationary.py tests/solvers/test_preconditioned.py::test_formula_and_derivatives
    tests/solvers/test_preconditioned.py::test_module
"""

# --- The probes of benchmarks/probes. ---
PROBES = ROOT / "benchmarks" / "probes"
MOST_OF_A_PROBE = 120  # seconds of a probe
OF_A_REHEARSAL = "5 points, small"
# Of one launch of each kernel, from the hardware's counters: what the models of docs/cuda.md count.
COUNTED = ("tile_sum_kernel", "tile_kernel", "mask_kernel")
COUNTERS = """
    gpu__time_duration.sum dram__bytes_read.sum dram__bytes_write.sum lts__t_sectors_op_read.sum
    lts__t_sectors_op_write.sum l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum
    l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum l1tex__throughput.avg.pct_of_peak_sustained_elapsed
    lts__throughput.avg.pct_of_peak_sustained_elapsed dram__throughput.avg.pct_of_peak_sustained_elapsed
    sm__warps_active.avg.pct_of_peak_sustained_active smsp__inst_executed.sum
"""


# --- Processes: what ends one of them ends neither the run nor what comes after it. ---
#
# A program that takes `--shard I/N+K` (of N parts the I-th, from its K-th item on) and `--progress FILE`
# (tests/progress.py, scripts/gpu_smoke.py) writes a line when an item begins and one when it ends. If a
# process crashes, comes to nothing for too long or sees a CUDA error, after which none of its kernels runs, a
# new one goes on from the next item.


@dataclass
class Step:
    """One step and its result."""

    name: str
    ok: bool
    what: str  # one line
    notes: list[str] = field(default_factory=list)  # failures, skipped tests, the end of the output
    seconds: float = 0.0


def run(
    command: list[str], limit: float, log: Path, watch: tuple[Path, float] | None = None, **environment: str
) -> tuple[int, str]:
    """Exit code and output, also written to `log`; 124 and the output so far after `limit` seconds, or if the
    file of `watch` has not grown for its seconds."""
    log.parent.mkdir(parents=True, exist_ok=True)
    start = last = time.monotonic()
    size, code = 0, None
    with open(log, "w") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        while code is None:
            try:
                code = process.wait(min(1, max(limit, 0.1)))
            except subprocess.TimeoutExpired:
                now = time.monotonic()
                if watch and watch[0].exists() and watch[0].stat().st_size != size:
                    size, last = watch[0].stat().st_size, now
                if now - start > limit or (watch and now - last > watch[1]):
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    code = 124
    return code, log.read_text(errors="replace")


def end_of(output: str, lines: int = 15) -> list[str]:
    return [line[:300] for line in output.splitlines() if line.strip()][-lines:]


@dataclass
class Outcomes:
    """What became of each item of a part or of all parts, by name."""

    states: dict[str, tuple[str, str]] = field(default_factory=dict)  # passed, failed or skipped, and why
    trouble: list[str] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)

    def add(self, other: Outcomes) -> None:
        self.states |= other.states
        self.trouble += other.trouble
        self.logs += other.logs

    def step(self, name: str, notes: list[str] | None = None) -> Step:
        count = Counter(state for state, _ in self.states.values())
        reasons = Counter(why for state, why in self.states.values() if state == "skipped")
        lines = [f"{item}: {why}" for item, (state, why) in self.states.items() if state == "failed"]
        lines = self.trouble + lines + [f"{n} skipped: {why}" for why, n in reasons.most_common()]
        ok = bool(self.states) and not count["failed"] and not self.trouble
        what = f"{count['passed']} passed, {count['failed']} failed"
        return Step(name, ok, what, [line[:400] for line in (notes or []) + lines])


def read(progress: Path) -> tuple[int, int, dict[str, tuple[str, str]], str, bool]:
    """Of the file: items to run, items begun, what became of them, the last begun, and was there an end."""
    states: dict[str, tuple[str, str]] = {}
    total, begun, last, ended = 0, 0, "", False
    for line in progress.read_text().splitlines() if progress.exists() else ():
        state, name, why = (*line.split("\t"), "", "")[:3]
        if state == "all":
            total = int(name)
        elif state == "begin":
            begun, last = begun + 1, name
        elif state == "end":
            ended = True
        elif states.get(name, ("",))[0] != "failed":  # an error in the tear-down follows a test that passed
            states[name] = (state, why)
    return total, begun, states, last, ended


def part(
    command: list[str], log: Path, share: str, end: float, quiet: float, environment: dict[str, str]
) -> Outcomes:
    """All items of a share I/N, in as many processes as it takes. Those after the first wait for each kernel,
    so that an error comes from the call that reports it."""
    found, first = Outcomes(), 1
    for attempt in range(MOST_PROCESSES):
        place = log.with_name(f"{log.stem}-{share.replace('/', '-of-')}-{attempt}.log")
        progress = place.with_suffix(".progress")
        progress.unlink(missing_ok=True)
        found.logs.append(place)
        blocking = {"CUDA_LAUNCH_BLOCKING": "1"} if attempt else {}
        line = [*command, "--shard", f"{share}+{first}", "--progress", str(progress)]
        limit = end - time.monotonic()
        code, output = run(line, limit, place, (progress, quiet), **environment, **blocking)
        total, begun, states, last, ended = read(progress)
        found.add(Outcomes(states))
        why = "took too long" if code == 124 else f"ended with {code}"
        if ended and code >= 0 and code != 124:
            return found
        if last and last not in states:
            found.states[last] = ("failed", f"{why}: {' | '.join(end_of(output, 3))}")
        if not begun:
            found.trouble.append(f"{place.name}: did not start, {why}: {' | '.join(end_of(output, 3))}")
            return found
        first += begun
        if begun == total:
            if states.get(last, ("",))[0] == "passed":
                found.trouble.append(f"{place.name}: {why} after its last item")
            return found
        if end - time.monotonic() < 5:
            found.trouble.append(f"{place.name}: {total - begun} not run: the time was over")
            return found
    found.trouble.append(f"{place.name}: {total - begun} not run after {MOST_PROCESSES} processes")
    return found


@dataclass
class Parts:
    """A command in `count` parts."""

    command: list[str]
    log: Path
    count: int
    environment: dict[str, str] = field(default_factory=dict)


def all_parts(all_of_them: list[Parts], workers: int, limit: float, quiet: float) -> Outcomes:
    """`workers` of them at a time, a failure printed as soon as it is known."""
    end, found = time.monotonic() + limit, Outcomes()
    todo = [(p, f"{i}/{p.count}") for p in all_of_them for i in range(1, p.count + 1)]

    def one(job: tuple[Parts, str]) -> Outcomes:
        p, share = job
        if end - time.monotonic() < 5:
            return Outcomes(trouble=[f"{p.log.stem}, part {share}: not run: the time was over"])
        outcomes = part(p.command, p.log, share, end, quiet, p.environment)
        for name, (state, why) in outcomes.states.items():
            if state == "failed":
                print(f"       {name}: {why}"[:200], flush=True)
        return outcomes

    with ThreadPoolExecutor(max_workers=workers) as pool:
        for outcomes in pool.map(one, todo):
            found.add(outcomes)
    return found


# --- What is here, and what is missing. ---


def look(log: Path, rehearsal: bool = False) -> dict:
    """Facts about this machine, from a separate process, since importing torch takes long and may fail."""
    emulated = "str(_library.folder / 'learnsolve_cuda_emulated.so')"
    ask = f"""
import importlib.util, json, os, sys
facts = {{"python": sys.version.split()[0], "torch": None, "device": None, "cores": os.cpu_count()}}
facts["absent"] = [p for p in {PACKAGES!r} if importlib.util.find_spec(p) is None]
facts["cupy"] = importlib.util.find_spec("cupy") is not None
try:
    import torch
    facts["torch"], facts["cuda"] = torch.__version__, torch.version.cuda
    if torch.cuda.is_available():
        facts["device"] = torch.cuda.get_device_name(0)
        facts["capability"] = "".join(map(str, torch.cuda.get_device_capability(0)))
        facts["free_bytes"] = torch.cuda.mem_get_info(0)[0]
    if {rehearsal}:
        from learnsolve import _library
        facts["device"], facts["emulated"] = "emulator", {emulated}
except Exception as error:
    facts["error"] = f"{{type(error).__name__}}: {{error}}"
print(json.dumps(facts))
"""
    code, output = run([sys.executable, "-c", ask], 120, log)
    try:
        facts = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        facts = {"python": sys.version.split()[0], "torch": None, "device": None, "absent": [], "cupy": False}
        facts["error"] = " ".join(end_of(output, 1)) or f"exit code {code}"
    return facts | {name: tool(name) for name in ("nvcc", "compute-sanitizer", "cmake", "ninja")}


def places() -> str:
    """Folders of programs that are not always on PATH: of this Python and what pip installs, of toolkits."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    found = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    return os.pathsep.join(found + [f"{home}/bin" for home in homes if home])


def tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=places())


def missing(facts: dict, prebuilt: bool = False) -> list[str]:
    """What is missing, each item with its remedy."""
    found = []
    if tuple(map(int, facts["python"].split(".")[:2])) < (3, 11):
        found.append(
            f"Python {facts['python']}: 3.11 or newer is needed; select one with PYTHON=/path/to/python3"
        )
    if facts["torch"] is None:
        why = f" ({facts['error']})" if "error" in facts else ""
        found.append(
            f"torch cannot be imported{why}: install a CUDA build of torch >= 2.10 for {sys.executable}"
        )
    elif tuple(map(int, re.findall(r"\d+", facts["torch"])[:2])) < (2, 10):
        found.append(f"torch {facts['torch']}: 2.10 or newer is needed (pip install 'torch>=2.10')")
    elif facts["device"] is None:
        why = "it is a build without CUDA" if not facts.get("cuda") else "check the driver with nvidia-smi"
        found.append(f"no CUDA device: torch {facts['torch']} sees none ({why}); without one, --rehearse")
    if facts["absent"]:
        names = " ".join(name.replace("_", "-") for name in facts["absent"])
        found.append(f"Python packages: pip install {names}")
    if facts["nvcc"] is None and not prebuilt:
        found.append("nvcc: install the CUDA toolkit, set CUDA_HOME to its folder, or use --prebuilt")
    for name in ("cmake", "ninja"):
        if facts[name] is None:
            found.append(f"{name}: pip install {name}, or the system's package")
    return found


def missing_for_rehearsal(facts: dict) -> list[str]:
    if Path(facts.get("emulated", "nowhere")).exists():
        return []
    why = facts.get(
        "error", "learnsolve_cuda_emulated.so was not built: LEARNSOLVE_CUDA_EMULATOR=1 make setup"
    )
    return [f"the emulator: {why}"]


# --- The steps. ---


@dataclass
class Plan:
    """What the steps run, and where: on the device, or as a rehearsal on the emulator (csrc/emulator)."""

    facts: dict
    folder: Path
    prebuilt: Path | None = None
    sections: str = ""
    seconds: float = 0.2
    rehearsal: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.site = ROOT if self.rehearsal else self.folder / "site"
        self.environment = {"PYTHONPATH": str(self.site), "OMP_NUM_THREADS": "1", "CI": ""}
        self.smoke = [sys.executable, "scripts/gpu_smoke.py"]
        self.workers = AT_A_TIME
        if self.rehearsal:
            self.environment["LEARNSOLVE_CUDA_EMULATOR"] = "1"
            self.smoke += ["--device", "emulator", "--only", "^(product, a vector|cg, solves)$"]
            self.workers = 2

    def is_built(self) -> bool:
        return self.rehearsal or (self.site / "learnsolve" / "learnsolve_cuda.so").exists()


def build(plan: Plan, limit: float) -> Step:
    """A wheel for this torch and this device only, unpacked into the folder: a new start. A prebuilt library
    takes the place of what nvcc would have compiled."""
    facts = plan.facts
    for pattern in ("bench*", "probes.json", "*.progress", "*.log"):
        for old in plan.folder.glob(pattern):
            old.unlink()
    if plan.rehearsal:
        return loads(plan, "as it is here")
    shutil.rmtree(plan.site, ignore_errors=True)
    target = ["--no-index", "--no-deps", "--no-build-isolation", "--upgrade", "--target", str(plan.site)]
    environment = {"LEARNSOLVE_CUDA": "0"}
    if plan.prebuilt is None:
        architecture = f"{facts['capability']}-real"
        environment = {"LEARNSOLVE_CUDA_ARCHITECTURES": architecture, "CUDACXX": facts["nvcc"]}
    code, output = run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *target, "."],
        limit,
        plan.folder / "build.log",
        **environment,
        LEARNSOLVE_CUDA_EMULATOR="0",
        CMAKE_BUILD_PARALLEL_LEVEL=str(os.cpu_count() or 2),
        PATH=os.pathsep.join((os.environ.get("PATH", ""), places())),
    )
    if code != 0:
        what = "failed" if code != 124 else "took too long"
        return Step("build", False, what, end_of(output))
    if plan.prebuilt is not None:
        shutil.copy(plan.prebuilt, plan.site / "learnsolve" / "learnsolve_cuda.so")
    return loads(plan, f"sm_{facts['capability']}" if plan.prebuilt is None else plan.prebuilt.name)


def loads(plan: Plan, what: str) -> Step:
    """Is it what a process imports, with its CUDA operators?"""
    ask = "import learnsolve as ls; from learnsolve import _library as l; print(ls.__file__); "
    ask += (
        "l.load_cuda('learnsolve_cuda_emulated')" if plan.rehearsal else "assert l.cuda_loaded, ls.config()"
    )
    code, output = run([sys.executable, "-P", "-c", ask], 120, plan.folder / "load.log", **plan.environment)
    ok = code == 0 and str(plan.site) in output
    what, notes = (what, []) if ok else ("does not load", end_of(output))
    return Step("build", ok, what, notes)


def smoke(plan: Plan, limit: float) -> Step:
    """Every kind of kernel once, in processes that wait for each launch: a new one after an error."""
    _, output = run([*plan.smoke, "--list"], min(limit, 120), plan.folder / "cases.log", **plan.environment)
    count = min(2 * plan.workers, len(output.splitlines()))
    each = Parts(
        plan.smoke, plan.folder / "smoke.log", count, plan.environment | {"CUDA_LAUNCH_BLOCKING": "1"}
    )
    found = all_parts([each], plan.workers, limit, quiet=90)
    return found.step("smoke")


def tests(plan: Plan, limit: float) -> Step:
    """In several processes, which share one device and each use little of its memory."""
    # -P, so that it imports the learnsolve that was built, not the source folder
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    log = plan.folder / "tests.log"
    if plan.rehearsal:
        options = ["tests/ops/test_cuda.py", "-k", "alignment"]
        groups = [Parts([*command, *options], log, 1, plan.environment)]
    else:
        shared = [*command, "--device", "cuda", "-k", "not cuda and not compiled", *ON_THE_DEVICE.split()]
        groups = [Parts([*command, *ABOUT_THE_DEVICE], log, 2, plan.environment)]
        groups.append(Parts(shared, log.with_name("shared-tests.log"), plan.workers - 2, plan.environment))
    found = all_parts(groups, plan.workers, limit, quiet=120)
    return found.step("tests")


def bench(plan: Plan, limit: float) -> Step:
    """Alone on the device; what decides most comes first."""
    name = "-".join(["bench", *plan.sections.split(",")]).rstrip("-")
    out = plan.folder / f"{name}.json"
    # -P and this path, so that it imports the learnsolve that was built, and benchmarks of the source folder
    command = [sys.executable, "-P", "-m", "benchmarks.gpu", "--out", str(out)]
    command += ["--seconds", str(plan.seconds)]
    if plan.sections:
        command += ["--only", plan.sections]
    if plan.rehearsal:
        command += ["--device", "cpu", "--quick", "--seconds", "0.001"]
    for old in (out, out.with_suffix(".md")):
        old.unlink(missing_ok=True)
    path = os.pathsep.join((str(plan.site), str(ROOT)))
    environment = plan.environment | {"PYTHONPATH": path}
    code, output = run(command, limit, plan.folder / f"{name}.log", **environment)
    notes = [line for line in output.splitlines() if line.startswith("left out:")]
    if not plan.facts["cupy"]:
        notes.append("CuPy is not installed: cuSPARSE was measured through torch only")
    what = "took too long" if code == 124 else " ".join(end_of(output, 1))
    notes += end_of(output) if code not in (0, 124) else []
    return Step("bench", code == 0, re.sub(r"\s+", " ", what), notes)


def sanitizer(plan: Plan, limit: float, which: str) -> Step:
    """The cases of `smoke` under one of the tools of compute-sanitizer."""
    if plan.facts["compute-sanitizer"] is None:
        why = "compute-sanitizer was not found: it comes with the CUDA toolkit"
        return Step(which, True, "skipped", [why])
    options = ["--report-api-errors", "no", "--show-backtrace", "no", "--print-limit", "1000"]
    command = [plan.facts["compute-sanitizer"], "--tool", which, *options, *plan.smoke, "--types", "2"]
    # A separate allocation per tensor, with its own bounds.
    environment = plan.environment | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    parts = Parts(command, plan.folder / f"{which}.log", plan.workers, environment)
    outcomes = all_parts([parts], plan.workers, limit, quiet=240)
    outputs = [log.read_text(errors="replace") for log in outcomes.logs]
    ours, others = findings("\n".join(outputs))
    ended = any("ERROR SUMMARY" in output or "RACECHECK SUMMARY" in output for output in outputs)
    step = outcomes.step(which, ours[:10])
    step.what = f"{len(ours)} findings in our kernels, {others} in others; {step.what}"
    step.ok = step.ok and not ours and ended
    return step


def findings(output: str) -> tuple[list[str], int]:
    """Findings of compute-sanitizer in our kernels, one line each; number of those in others."""
    blocks: list[list[str]] = []
    for line in output.splitlines():
        text = line.removeprefix("=========")
        if text == line:
            continue
        if text.startswith(("  ", "\t")) and blocks:  # continues the previous finding
            blocks[-1].append(text.strip())
        elif text.strip():
            blocks.append([text.strip()])
    told = [
        block for block in blocks if any(line.startswith(("at ", "in ")) or " at " in line for line in block)
    ]
    ours = [" | ".join(block[:3])[:300] for block in told if any("learnsolve" in line for line in block)]
    return ours, len(told) - len(ours)


def compilation(plan: Plan, name: str) -> list[str]:
    """That compiles the probe."""
    out = ["-o", str(plan.folder / name), "-I", str(ROOT / "csrc"), "-std=c++20"]
    source = str(PROBES / f"{name}.cu")
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
    ncu = tool("ncu")
    found: dict[str, dict[str, str]] = {}
    for kernel in COUNTED if ncu and not plan.rehearsal else ():
        line = [ncu, "--clock-control", "none", "--kill", "yes", "-c", "1", "-k", f"regex:{kernel}"]
        line += ["--metrics", ",".join(COUNTERS.split()), str(plan.folder / name), "5 points"]
        _, output = run(
            line, min(40, end - time.monotonic()), plan.folder / f"{kernel}.log", LD_LIBRARY_PATH=libraries
        )
        words = [text.split() for text in output.splitlines()]
        found[kernel] = {w[0]: f"{w[2]} {w[1]}" for w in words if len(w) == 3 and w[0] in COUNTERS.split()}
    return found


def probes(plan: Plan, limit: float) -> Step:
    """All of them; what one printed before it failed or took too long stays."""
    end, notes = time.monotonic() + limit, []
    plan.folder.mkdir(parents=True, exist_ok=True)
    names = ["products", "backward", "triangular"]
    names = names if plan.rehearsal else ["ceilings", *names]

    def compile_it(name: str) -> tuple[int, str]:
        return run(compilation(plan, name), end - time.monotonic(), plan.folder / f"{name}-build.log")

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
            most = min(MOST_OF_A_PROBE, end - time.monotonic())
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
    return Step("probes", ok, what or "nothing ran", notes)


def keep(plan: Plan, out: Path) -> None:
    """The tables beside the results of the other steps."""
    made = plan.folder / "probes.json"
    if made.exists():
        shutil.copy(made, out.with_name(out.name.replace("gpu-", "probes-", 1)))


# Each with the most seconds that it takes.
STEPS: dict[str, tuple[Callable[[Plan, float], Step], float]] = {
    "build": (build, 570),
    "smoke": (smoke, 300),
    **{name: (functools.partial(sanitizer, which=name), 280) for name in SANITIZERS},
    "tests": (tests, 570),
    "probes": (probes, 400),
    "bench": (bench, 570),
}
CHOICES = ("look", *STEPS, "sanitizer")


def line(step: Step) -> str:
    return f"{'ok    ' if step.ok else 'FAILED'} {step.name}, {step.seconds:.0f} s: {step.what}"


def summary(facts: dict, steps: list[Step]) -> str:
    """The end of the output, and the head of the results page."""
    lines = [f"{facts['device']}, torch {facts['torch']}, CUDA {facts.get('cuda')}", ""]
    for step in steps:
        lines.append(f"- {line(step)}")
        lines += [f"    - {note}" for note in step.notes[:40]]
        if len(step.notes) > 40:
            lines.append(f"    - and {len(step.notes) - 40} more")
    return "\n".join(lines) + "\n"


def place_of_results(facts: dict, folder: Path) -> Path:
    return folder / f"gpu-{re.sub(r'[^a-z0-9]+', '-', facts['device'].lower()).strip('-')}.json"


def earlier(facts: dict, folder: Path) -> list[Step]:
    """What former calls have written."""
    out = place_of_results(facts, folder)
    return [Step(**step) for step in json.loads(out.read_text())["steps"]] if out.exists() else []


def write(plan: Plan, steps: list[Step], folder: Path) -> Path:
    """A JSON file and a page with the results of the steps and of the benchmarks, and an archive."""
    facts = plan.facts
    kept = {key: facts.get(key) for key in ("device", "capability", "torch", "cuda", "python", "cupy")}
    record = {"gpu": kept, "steps": [asdict(step) for step in steps]}
    measured = sorted(plan.folder.glob("bench*.json"))
    record["benchmarks"] = [json.loads(path.read_text()) for path in measured]
    folder.mkdir(parents=True, exist_ok=True)
    out = place_of_results(facts, folder)
    out.write_text(json.dumps(record, indent=1) + "\n")
    keep(plan, out)
    tables = "\n".join(path.with_suffix(".md").read_text() for path in measured)
    text = f"# `make gpu`\n\n{summary(facts, steps)}\n{tables}".rstrip() + "\n"
    out.with_suffix(".md").write_text(text)
    with tarfile.open(plan.folder / "results.tar.gz", "w:gz") as archive:
        for path in (out, out.with_suffix(".md"), *sorted(plan.folder.glob("*.log"))):
            archive.add(path, path.name)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(("look", *STEPS)), help="steps, separated by commas")
    parser.add_argument("--minutes", type=float, default=60.0, help="time limit for all steps")
    parser.add_argument("--prebuilt", type=Path, help="a learnsolve_cuda.so that was compiled elsewhere")
    parser.add_argument("--sections", default="", help="of the benchmarks, separated by commas")
    parser.add_argument("--seconds", type=float, default=0.2, help="of the benchmarks, for each function")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--folder", type=Path, help="for the build and the logs; build/gpu")
    parser.add_argument("--rehearse", action="store_true", help="on the emulator, without a device")
    args = parser.parse_args()
    wanted = set(args.only.split(","))
    if unknown := wanted - set(CHOICES):
        parser.error(f"--only: steps are {', '.join(CHOICES)}, got {', '.join(sorted(unknown))}")
    if "sanitizer" in wanted:
        wanted |= set(SANITIZERS)
    if args.prebuilt and not args.prebuilt.is_file():
        parser.error(
            f"--prebuilt: {args.prebuilt} is not a file; compile it with LEARNSOLVE_CUDA_ARCHITECTURES"
        )
    folder = (args.folder or ROOT / "build" / ("gpu-rehearsal" if args.rehearse else "gpu")).resolve()
    end = time.monotonic() + 60 * args.minutes - 10

    facts = look(folder / "look.log", args.rehearse)
    lacks = missing_for_rehearsal(facts) if args.rehearse else missing(facts, args.prebuilt is not None)
    if lacks:
        print("make gpu: cannot run here. What is missing:", file=sys.stderr)
        print("\n".join(f"  - {item}" for item in lacks), file=sys.stderr)
        return 2
    plan = Plan(
        facts, folder, args.prebuilt and args.prebuilt.resolve(), args.sections, args.seconds, args.rehearse
    )
    if not plan.is_built() and wanted != {"look"}:
        wanted.add("build")
    print("\n".join(f"{name}: {fact}" for name, fact in facts.items()), flush=True)
    before = [] if "build" in wanted else earlier(facts, args.results)
    done: list[Step] = []
    for name, (run_step, most) in STEPS.items():
        if name not in wanted:
            continue
        if done and not plan.is_built():
            print("Nothing to test: the build failed, see build.log.")
            break
        start = time.monotonic()
        done.append(run_step(plan, min(most, end - start)))
        done[-1].seconds = time.monotonic() - start
        print(line(done[-1]), flush=True)
        write(plan, [s for s in before if s.name not in {d.name for d in done}] + done, args.results)
    failed = [step.name for step in done if not step.ok]
    if done:
        print(f"\n{summary(facts, done)}\nwrote {place_of_results(facts, args.results)}")
        print(f"and, with logs, {folder / 'results.tar.gz'}")
    print(
        f"{len(failed)} of {len(done)} steps failed: {', '.join(failed)}"
        if failed
        else "All steps succeeded."
    )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
