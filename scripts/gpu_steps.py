"""The steps of scripts/gpu.py: build, smoke, tests, benchmarks. Another: gpu_sanitizer.py."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import gpu_machine
from gpu_parts import ROOT, Parts, Step, all_parts, end_of, run

AT_A_TIME = max(2, min(16, os.cpu_count() or 2))  # processes on the device

# Tests of device features: streams, graphs, waits, bits. And tests shared with the CPU, with their tensors on
# the device (tests/pretend_device.py).
ABOUT_THE_DEVICE = tuple(sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("tests/*/test_cuda*.py")))
ON_THE_DEVICE = (
    "tests/ops/test_contract.py",
    "tests/ops/test_incomplete.py::test_third_derivatives",
    "tests/ops/test_incomplete.py::test_compile_with_a_shift",
    "tests/ops/test_incomplete.py::test_second_derivatives_on_larger_patterns",
    "tests/ops/test_products.py",
    "tests/ops/test_spgemm.py",
    "tests/ops/test_stencil.py",
    "tests/matrix/test_csr.py",
    "tests/nn/test_sparse_matrix.py",
    "tests/preconditioners/test_block_jacobi.py",
    "tests/preconditioners/test_polynomial.py",
    "tests/preconditioners/test_preconditioner_contract.py",
    "tests/preconditioners/test_trainable.py",
    "tests/solvers/test_krylov.py",
    "tests/solvers/test_stationary.py",
    "tests/solvers/test_preconditioned.py",
)


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
            self.smoke += [
                "--device",
                "emulator",
                "--only",
                "^(product, a vector|cg, solves)$",
            ]
            self.workers = 2

    def is_built(self) -> bool:
        return self.rehearsal or (self.site / "learnsolve" / "learnsolve_cuda.so").exists()


def build(plan: Plan, limit: float) -> Step:
    """A wheel for this torch and this device only, unpacked into the folder: a new start. A prebuilt library
    takes the place of what nvcc would have compiled."""
    start, facts = time.monotonic(), plan.facts
    for pattern in ("bench*", "probes.json", "*.progress", "*.log"):
        for old in plan.folder.glob(pattern):
            old.unlink()
    if plan.rehearsal:
        return loads(plan, start, "as it is here")
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
        PATH=os.pathsep.join((os.environ.get("PATH", ""), gpu_machine.places())),
    )
    if code != 0:
        what = "failed" if code != 124 else "took too long"
        return Step("build", False, time.monotonic() - start, what, end_of(output))
    if plan.prebuilt is not None:
        shutil.copy(plan.prebuilt, plan.site / "learnsolve" / "learnsolve_cuda.so")
    return loads(plan, start, f"sm_{facts['capability']}" if plan.prebuilt is None else plan.prebuilt.name)


def loads(plan: Plan, start: float, what: str) -> Step:
    """Is it what a process imports, with its CUDA operators?"""
    ask = "import learnsolve as ls; from learnsolve import _library as l; print(ls.__file__); "
    ask += (
        "l.load_cuda('learnsolve_cuda_emulated')" if plan.rehearsal else "assert l.cuda_loaded, ls.config()"
    )
    code, output = run([sys.executable, "-P", "-c", ask], 120, plan.folder / "load.log", **plan.environment)
    ok = code == 0 and str(plan.site) in output
    what, notes = (what, []) if ok else ("does not load", end_of(output))
    return Step("build", ok, time.monotonic() - start, what, notes)


def smoke(plan: Plan, limit: float) -> Step:
    """Every kind of kernel once, in processes that wait for each launch: a new one after an error."""
    start = time.monotonic()
    _, output = run([*plan.smoke, "--list"], min(limit, 120), plan.folder / "cases.log", **plan.environment)
    count = min(2 * plan.workers, len(output.splitlines()))
    each = Parts(
        plan.smoke, plan.folder / "smoke.log", count, plan.environment | {"CUDA_LAUNCH_BLOCKING": "1"}
    )
    found = all_parts([each], plan.workers, limit, quiet=90)
    return found.step("smoke", time.monotonic() - start)


def tests(plan: Plan, limit: float) -> Step:
    """In several processes, which share one device and each use little of its memory."""
    start = time.monotonic()
    # -P, so that it imports the learnsolve that was built, not the source folder
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    log = plan.folder / "tests.log"
    if plan.rehearsal:
        options = ["tests/ops/test_cuda.py", "-k", "alignment"]
        groups = [Parts([*command, *options], log, 1, plan.environment)]
    else:
        shared = [*command, "--device", "cuda", "-k", "not cuda and not compiled", *ON_THE_DEVICE]
        groups = [Parts([*command, *ABOUT_THE_DEVICE], log, 2, plan.environment)]
        groups.append(Parts(shared, log.with_name("shared-tests.log"), plan.workers - 2, plan.environment))
    found = all_parts(groups, plan.workers, limit, quiet=120)
    return found.step("tests", time.monotonic() - start)


def bench(plan: Plan, limit: float) -> Step:
    """Alone on the device; what decides most comes first."""
    start = time.monotonic()
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
    return Step("bench", code == 0, time.monotonic() - start, re.sub(r"\s+", " ", what), notes)
