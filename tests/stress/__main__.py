"""Run harnesses at their full counts: `make stress`.

    python -m tests.stress                     all harnesses, in two processes
    python -m tests.stress arrays files        these
    python -m tests.stress --share 0.1         a tenth of the cases
    python -m tests.stress --seed 7            other random cases; the seed of a fault repeats it
    python -m tests.stress --write             and put the numbers into docs/robustness.md

Every harness runs as two processes, each with half of its cases and a seed of its own. The exit code is 1 if
there is a fault; a process that ends early is one.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "robustness.md"
BEGIN, END = "<!-- make stress: begin -->", "<!-- make stress: end -->"
PROCESSES = 2
LIMIT = 3600  # seconds of one process


def main() -> int:
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
    from tests.stress import HARNESSES, Report, promise, run

    parser = argparse.ArgumentParser(
        prog="python -m tests.stress",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(HARNESSES))
    parser.add_argument("--share", type=float, default=1.0, help="part of the full counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="put the numbers into docs/robustness.md")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)  # one process: this number of cases
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in HARNESSES]:
        parser.error(f"unknown harness {unknown[0]!r}, known are {', '.join(HARNESSES)}")
    names = arguments.names or list(HARNESSES)

    if arguments.part is not None:
        print("\n" + json.dumps(asdict(run(names[0], arguments.part, arguments.seed))))
        return 0

    reports, start = [], time.perf_counter()
    for name in names:
        count = max(1, round(HARNESSES[name].cases * arguments.share))
        parts = [count // PROCESSES + (i < count % PROCESSES) for i in range(PROCESSES)]
        seeds = [PROCESSES * arguments.seed + i for i in range(PROCESSES)]
        began = time.perf_counter()
        with ThreadPoolExecutor(PROCESSES) as pool:
            done = list(pool.map(lambda part, seed, name=name: in_a_process(name, part, seed), parts, seeds))
        report = Report(name)
        for part in done:
            report = report.merged(Report(**part))
        report.seconds = time.perf_counter() - began
        reports.append(report)
        print(f"{name}: {report.tried()}; {len(report.faults)} faults; {report.seconds:.0f} s", flush=True)
        for fault in report.faults:
            print(f"    {fault}", flush=True)
    faults = sum(len(report.faults) for report in reports)
    print(f"{len(reports)} harnesses, {faults} faults in {time.perf_counter() - start:.0f} s")
    if arguments.write:
        rows = {report.name: _row(report, promise(report.name)) for report in reports}
        PAGE.write_text(_replaced(PAGE.read_text(), rows, list(HARNESSES)))
    return 1 if faults else 0


def in_a_process(name: str, count: int, seed: int) -> dict:
    """The report of one process, as a dict."""
    if count == 0:
        return {"name": name}
    command = [sys.executable, "-m", "tests.stress", name, "--part", str(count), "--seed", str(seed)]
    # More threads than processors, where a harness sets them, must not wait by turning.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    what = f"{name}: the process with {count} cases and seed {seed}"
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **threads},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return {"name": name, "faults": [f"{what} did not end within {LIMIT} s"]}
    if done.returncode:
        return {"name": name, "faults": [f"{what} ended with {done.returncode}: {done.stderr[-2000:]}"]}
    return json.loads(done.stdout.splitlines()[-1])


HEAD = "| harness | promise | tried | faults | seconds |\n| --- | --- | --- | --- | --- |"


def _row(report, promise: str) -> str:
    return f"| `{report.name}` | {promise} | {report.tried()} | {len(report.faults)} | {report.seconds:.0f} |"


def _replaced(text: str, rows: dict[str, str], order: list[str]) -> str:
    """The page with these rows of the table; those of harnesses that did not run stay."""
    before, table = text.split(BEGIN)
    table, after = table.split(END)
    rows = {**{m[2]: m[1] for m in re.finditer(r"^(\| `(\w+)` .*)$", table, re.MULTILINE)}, **rows}
    lines = [rows[name] for name in order if name in rows]
    return "\n".join([f"{before}{BEGIN}", HEAD, *lines, f"{END}{after}"])


if __name__ == "__main__":
    sys.exit(main())
