"""Processes of scripts/gpu.py: what ends one of them ends neither the run nor what comes after it.

A program that takes `--shard I/N+K` (of N parts the I-th, from its K-th item on) and `--progress FILE`
(tests/progress.py, scripts/gpu_smoke.py) writes a line when an item begins and one when it ends. If a process
crashes, comes to nothing for too long or sees a CUDA error, after which none of its kernels runs, a new one
goes on from the next item.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_PROCESSES = 20  # for one part


@dataclass
class Step:
    """One step and its result."""

    name: str
    ok: bool
    seconds: float
    what: str  # one line
    notes: list[str] = field(default_factory=list)  # failures, skipped tests, the end of the output


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

    def step(self, name: str, seconds: float, notes: list[str] | None = None) -> Step:
        count = Counter(state for state, _ in self.states.values())
        reasons = Counter(why for state, why in self.states.values() if state == "skipped")
        lines = [f"{item}: {why}" for item, (state, why) in self.states.items() if state == "failed"]
        lines = self.trouble + lines + [f"{n} skipped: {why}" for why, n in reasons.most_common()]
        ok = bool(self.states) and not count["failed"] and not self.trouble
        what = f"{count['passed']} passed, {count['failed']} failed"
        return Step(name, ok, seconds, what, [line[:400] for line in (notes or []) + lines])


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
