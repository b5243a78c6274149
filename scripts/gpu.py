"""Build, test, check and measure on the CUDA device of this machine: `make gpu` (docs/cuda.md).

    python scripts/gpu.py [--only build,smoke,tests,sanitizer,bench] [--minutes 10] [--results FOLDER]

Uses the Python that runs it, with its torch, and installs nothing into it: learnsolve is built for the
visible device, into build/gpu. Needs no network. Each step has a time limit; a failed step does not stop the
others. Exit code: 0 on success, 1 if a step failed, 2 if nothing could be run here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "gpu"
SITE = BUILD / "site"
PACKAGES = ("numpy", "scipy", "pytest", "pybind11", "scikit_build_core", "pip")
STEPS = ("build", "smoke", "tests", "sanitizer", "bench")
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")

# Tests of device features: streams, graphs, waits, bits. And tests shared with the CPU, with their tensors on
# the device (tests/pretend_device.py), divided into one part per process.
ABOUT_THE_DEVICE = tuple(sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("tests/*/test_cuda*.py")))
ON_THE_DEVICE = (
    "tests/ops/test_contract.py",
    "tests/ops/test_core_operations.py",
    "tests/ops/test_form_and_diagonal.py",
    "tests/ops/test_incomplete_transforms.py",
    "tests/ops/test_products.py",
    "tests/ops/test_spgemm.py",
    "tests/ops/test_stencil.py",
    "tests/matrix/test_csr.py",
    "tests/nn/test_sparse_matrix.py",
    "tests/preconditioners/test_block_jacobi.py",
    "tests/preconditioners/test_polynomial.py",
    "tests/preconditioners/test_preconditioner_contract.py",
    "tests/preconditioners/test_trainable.py",
    "tests/solvers/test_krylov_contract_gradients.py",
    "tests/solvers/test_stationary_contract.py",
    "tests/solvers/test_triangular_solve.py",
)


@dataclass
class Step:
    """One step and its result."""

    name: str
    ok: bool
    seconds: float
    what: str  # one line
    notes: list[str] = field(default_factory=list)  # skipped tests, failures, the end of the output


def run(command: list[str], limit: float, log: Path, **environment: str) -> tuple[int, str]:
    """Exit code and output, also written to `log`; 124 and the output so far after `limit` seconds."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w+") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(max(limit, 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = 124
    return code, log.read_text(errors="replace")


def end_of(output: str, lines: int = 15) -> list[str]:
    return [line[:300] for line in output.splitlines() if line.strip()][-lines:]


# --- The machine ---


def look() -> dict:
    """Facts about this machine, from a separate process, since importing torch takes long and may fail."""
    ask = f"""
import importlib.util, json, sys
facts = {{"python": sys.version.split()[0], "torch": None, "device": None}}
facts["absent"] = [p for p in {PACKAGES!r} if importlib.util.find_spec(p) is None]
facts["cupy"] = importlib.util.find_spec("cupy") is not None
try:
    import torch
    facts["torch"], facts["cuda"] = torch.__version__, torch.version.cuda
    if torch.cuda.is_available():
        facts["device"] = torch.cuda.get_device_name(0)
        facts["capability"] = "".join(map(str, torch.cuda.get_device_capability(0)))
except Exception as error:
    facts["error"] = f"{{type(error).__name__}}: {{error}}"
print(json.dumps(facts))
"""
    code, output = run([sys.executable, "-c", ask], 120, BUILD / "look.log")
    try:
        facts = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        facts = {"python": sys.version.split()[0], "torch": None, "device": None, "absent": [], "cupy": False}
        facts["error"] = " ".join(end_of(output, 1)) or f"exit code {code}"
    facts["nvcc"] = tool("nvcc")
    facts["compute-sanitizer"] = tool("compute-sanitizer")
    facts["cmake"], facts["ninja"] = shutil.which("cmake"), shutil.which("ninja")
    return facts


def tool(name: str) -> str | None:
    """A program of the CUDA toolkit, on PATH or in the usual folders of toolkits."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = os.pathsep.join(f"{home}/bin" for home in homes if home)
    return shutil.which(name) or shutil.which(name, path=places)


def missing(facts: dict) -> list[str]:
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
        found.append(f"no CUDA device: torch {facts['torch']} sees none ({why}); without one, `make test`")
    if facts["nvcc"] is None:
        found.append("nvcc: install the CUDA toolkit, or set CUDA_HOME to its folder")
    if facts["absent"]:
        names = " ".join(name.replace("_", "-") for name in facts["absent"])
        found.append(f"Python packages: pip install {names}")
    for name in ("cmake", "ninja"):
        if facts[name] is None:
            found.append(f"{name}: pip install {name}, or the system's package")
    return found


# --- Steps ---


def build(facts: dict, limit: float) -> Step:
    """Build a wheel for this torch and this device only, unpacked into build/gpu/site."""
    start = time.monotonic()
    home = str(Path(facts["nvcc"]).parent)
    code, output = run(
        [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
            "--upgrade",
            "--target",
            str(SITE),
            ".",
        ],
        limit,
        BUILD / "build.log",
        LEARNSOLVE_CUDA="1",
        LEARNSOLVE_CUDA_ARCHITECTURES=f"{facts['capability']}-real",
        LEARNSOLVE_CUDA_EMULATOR="0",
        CMAKE_BUILD_PARALLEL_LEVEL=str(os.cpu_count() or 2),
        CUDACXX=facts["nvcc"],
        PATH=os.environ.get("PATH", "") + os.pathsep + home,
    )
    ok = code == 0 and any(SITE.glob("learnsolve/learnsolve_cuda.so"))
    what = f"sm_{facts['capability']}" if ok else "failed" if code != 124 else "took too long"
    return Step("build", ok, time.monotonic() - start, what, [] if ok else end_of(output))


def smoke(limit: float) -> Step:
    """Every type of kernel once, one launch after another, so that a crash or a kernel that never ends has a
    name: it is that of the first case that is not in the log."""
    start = time.monotonic()
    code, output = run(
        [sys.executable, "scripts/gpu_smoke.py"],
        limit,
        BUILD / "smoke.log",
        PYTHONPATH=str(SITE),
        CUDA_LAUNCH_BLOCKING="1",
    )
    good = len(re.findall(r": ok$", output, re.MULTILINE))
    failed = re.findall(r"^.*: FAILED, .*", output, re.MULTILINE)
    what = f"{good} cases ok, {len(failed)} failed" + (", took too long" if code == 124 else "")
    notes = [] if code == 0 else failed or end_of(output)
    return Step("smoke", code == 0, time.monotonic() - start, what, notes)


def group(name: str, files: tuple[str, ...], options: list[str], limit: float) -> Step:
    """Run some test files in one process."""
    start = time.monotonic()
    report = BUILD / f"{name.replace(' ', '-')}.xml"
    report.unlink(missing_ok=True)
    # -P, so that it imports the learnsolve that was built, not the source folder
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    code, output = run(
        [*command, *options, *files],
        limit,
        BUILD / f"{name}.log",
        PYTHONPATH=str(SITE),
        OMP_NUM_THREADS="1",
        CI="",
    )
    seconds = time.monotonic() - start
    if not report.exists():
        why = "took too long" if code == 124 else f"pytest ended with {code}"
        return Step(f"tests: {name}", False, seconds, why, end_of(output))
    passed, failed, skipped = outcomes(report)
    notes = [f"failed: {test}" for test in failed] + [f"skipped: {line}" for line in skipped]
    what = f"{passed} passed, {len(failed)} failed"
    return Step(f"tests: {name}", code == 0, seconds, what, notes)


def outcomes(report: Path) -> tuple[int, list[str], list[str]]:
    """Number of passed tests; names of failed tests; one line per reason of skipped tests."""
    passed, failed = 0, []
    reasons: dict[str, list[str]] = {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif skip is not None:
            reasons.setdefault(skip.get("message") or "no reason", []).append(name)
        else:
            passed += 1
    lines = [
        f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: {why}"
        for why, names in reasons.items()
    ]
    return passed, failed, lines


def sanitizer(facts: dict, which: str, limit: float) -> Step:
    """scripts/gpu_smoke.py under one of the tools of compute-sanitizer."""
    start = time.monotonic()
    code, output = run(
        [
            facts["compute-sanitizer"],
            "--tool",
            which,
            "--report-api-errors",
            "no",
            "--show-backtrace",
            "no",
            "--print-limit",
            "1000",
            sys.executable,
            "scripts/gpu_smoke.py",
        ],
        limit,
        BUILD / f"{which}.log",
        PYTHONPATH=str(SITE),
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",  # a separate allocation per tensor, with its own bounds
    )
    ours, others = findings(output)
    seconds = time.monotonic() - start
    finished = "ERROR SUMMARY" in output or "RACECHECK SUMMARY" in output
    what = f"{len(ours)} findings in our kernels, {others} in others"
    notes = ours[:10]
    if code == 124 or not finished:
        what, notes = "took too long" if code == 124 else "did not finish", end_of(output)
    wrong = re.findall(r"^.*: FAILED, .*", output, re.MULTILINE)
    return Step(f"{which}", finished and code == 0 and not ours, seconds, what, notes + wrong[:10])


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


def bench(facts: dict, limit: float) -> Step:
    start = time.monotonic()
    out = BUILD / "bench.json"
    for old in (out, out.with_suffix(".md")):
        old.unlink(missing_ok=True)
    code, output = run(
        [sys.executable, "-m", "benchmarks.gpu", "--out", str(out)],
        limit,
        BUILD / "bench.log",
        PYTHONPATH=str(SITE),
    )
    notes = [line for line in output.splitlines() if line.startswith("left out:")]
    if not facts["cupy"]:
        notes.append("CuPy is not installed: cuSPARSE was measured through torch only")
    what = "took too long" if code == 124 else " ".join(end_of(output, 1))
    if code not in (0, 124):
        notes += end_of(output)
    return Step("bench", code == 0, time.monotonic() - start, what, notes)


def tests(limit: float) -> list[Step]:
    """Run the tests in several processes, which share one device and each use little of its memory."""
    parts = max(1, (os.cpu_count() or 2) - 5)  # the other cores run the sanitizer
    groups = [("the device", ABOUT_THE_DEVICE, [])]
    groups += [
        (
            f"on the device, {i} of {parts}",
            ON_THE_DEVICE,
            ["--device", "cuda", "--shard", f"{i}/{parts}", "-k", "not cuda"],
        )
        for i in range(1, parts + 1)
    ]
    with ThreadPoolExecutor(max_workers=len(groups)) as pool:
        return list(pool.map(lambda g: group(*g, limit), groups))


def sanitizers(facts: dict, limit: float) -> list[Step]:
    if facts["compute-sanitizer"] is None:
        why = "compute-sanitizer was not found: it comes with the CUDA toolkit"
        return [Step("sanitizer", True, 0, "skipped", [why])]
    with ThreadPoolExecutor(max_workers=len(TOOLS)) as pool:
        return list(pool.map(lambda which: sanitizer(facts, which, limit), TOOLS))


# --- All of it ---


def summary(facts: dict, steps: list[Step]) -> str:
    """The end of the output, and the head of the results page."""
    lines = [f"{facts['device']}, torch {facts['torch']}, CUDA {facts.get('cuda')}", ""]
    for step in steps:
        lines.append(f"- {'ok    ' if step.ok else 'FAILED'} {step.name}, {step.seconds:.0f} s: {step.what}")
        lines += [f"    - {note}" for note in step.notes[:40]]
        if len(step.notes) > 40:
            lines.append(f"    - and {len(step.notes) - 40} more")
    return "\n".join(lines) + "\n"


def write(facts: dict, steps: list[Step], folder: Path) -> Path:
    """Write a JSON file and a page with the results of the steps and of the benchmarks."""
    slug = re.sub(r"[^a-z0-9]+", "-", facts["device"].lower()).strip("-")
    kept = {key: facts.get(key) for key in ("device", "capability", "torch", "cuda", "python", "cupy")}
    record = {"gpu": kept, "steps": [asdict(step) for step in steps]}
    measured, page = BUILD / "bench.json", BUILD / "bench.md"
    ran = any(step.name == "bench" for step in steps)
    if ran and measured.exists():
        record["benchmarks"] = json.loads(measured.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"gpu-{slug}.json"
    out.write_text(json.dumps(record, indent=1) + "\n")
    tables = page.read_text() if ran and page.exists() else ""
    out.with_suffix(".md").write_text(f"# `make gpu`\n\n{summary(facts, steps)}\n{tables}".rstrip() + "\n")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(STEPS), help="steps, separated by commas")
    parser.add_argument("--minutes", type=float, default=10.0, help="time limit for all steps")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    wanted = set(args.only.split(","))
    if unknown := wanted - set(STEPS):
        parser.error(f"--only: steps are {', '.join(STEPS)}, got {', '.join(sorted(unknown))}")
    end = time.monotonic() + 60 * args.minutes - 10
    left = lambda: end - time.monotonic()  # noqa: E731

    facts = look()
    if in_the_way := missing(facts):
        print("make gpu: cannot run here. What is missing:", file=sys.stderr)
        print("\n".join(f"  - {line}" for line in in_the_way), file=sys.stderr)
        return 2
    print(f"{facts['device']}, torch {facts['torch']}", flush=True)
    steps: list[Step] = []

    def done(more: list[Step]) -> None:
        for step in more:
            print(
                f"{'ok    ' if step.ok else 'FAILED'} {step.name}, {step.seconds:.0f} s: {step.what}",
                flush=True,
            )
        steps.extend(more)

    if "build" in wanted:
        done([build(facts, min(300, left()))])
    if not any(SITE.glob("learnsolve/learnsolve_cuda.so")):
        print("Nothing to test: the build failed, see build/gpu/build.log.")
        wanted = set()
    if "smoke" in wanted:
        done([smoke(min(120, left()))])
    checks = {"tests": tests, "sanitizer": lambda limit: sanitizers(facts, limit)}
    with ThreadPoolExecutor(max_workers=2) as pool:
        limit = min(240, left() - 120)
        for future in [pool.submit(f, limit) for name, f in checks.items() if name in wanted]:
            done(future.result())
    if "bench" in wanted:  # alone on the device
        done([bench(facts, left())])
    out = write(facts, steps, args.results)
    print(f"\n{summary(facts, steps)}\nwrote {out} and {out.with_suffix('.md').name}")
    failed = [step.name for step in steps if not step.ok]
    print(
        f"{len(failed)} of {len(steps)} steps failed: {', '.join(failed)}"
        if failed
        else "All steps succeeded."
    )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
