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
import json
import re
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import gpu_probes
import gpu_sanitizer
import gpu_steps
from gpu_machine import look, missing, missing_for_rehearsal
from gpu_parts import ROOT, Step
from gpu_steps import Plan

# Each with the most seconds that it takes.
STEPS: dict[str, tuple[Callable[[Plan, float], Step], float]] = {
    "build": (gpu_steps.build, 570),
    "smoke": (gpu_steps.smoke, 300),
    **{
        name: (lambda plan, limit, name=name: gpu_sanitizer.sanitizer(plan, name, limit), 280)
        for name in gpu_sanitizer.TOOLS
    },
    "tests": (gpu_steps.tests, 570),
    "probes": (gpu_probes.probes, 400),
    "bench": (gpu_steps.bench, 570),
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
    gpu_probes.keep(plan, out)
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
        wanted |= set(gpu_sanitizer.TOOLS)
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
        done.append(run_step(plan, min(most, end - time.monotonic())))
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
