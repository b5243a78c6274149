"""A step of scripts/gpu.py: the cases of gpu_smoke.py under a tool of compute-sanitizer, and its findings."""

from __future__ import annotations

import time

from gpu_parts import Outcomes, Parts, Step, all_parts
from gpu_steps import Plan

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def sanitizer(plan: Plan, which: str, limit: float) -> Step:
    """The cases of `smoke` under one of the tools of compute-sanitizer."""
    start = time.monotonic()
    if plan.facts["compute-sanitizer"] is None:
        why = "compute-sanitizer was not found: it comes with the CUDA toolkit"
        return Step(which, True, 0, "skipped", [why])
    options = ["--report-api-errors", "no", "--show-backtrace", "no", "--print-limit", "1000"]
    command = [plan.facts["compute-sanitizer"], "--tool", which, *options, *plan.smoke, "--types", "2"]
    # A separate allocation per tensor, with its own bounds.
    environment = plan.environment | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    parts = Parts(command, plan.folder / f"{which}.log", plan.workers, environment)
    outcomes = all_parts([parts], plan.workers, limit, quiet=240)
    ours, others, summaries = sanitized(outcomes)
    step = outcomes.step(which, time.monotonic() - start, ours[:10])
    step.what = f"{len(ours)} findings in our kernels, {others} in others; {step.what}"
    step.ok = step.ok and not ours and summaries > 0
    return step


def sanitized(outcomes: Outcomes) -> tuple[list[str], int, int]:
    """The findings of all logs, and in how many of them the tool came to its summary."""
    ours, others, summaries = [], 0, 0
    for log in outcomes.logs:
        output = log.read_text(errors="replace")
        some, more = findings(output)
        ours, others = ours + some, others + more
        summaries += "ERROR SUMMARY" in output or "RACECHECK SUMMARY" in output
    return ours, others, summaries


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
