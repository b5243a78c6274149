"""Cases in child processes: what a case must not do is end the process, hang or take the memory."""

import faulthandler
import json
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from . import KEPT

BATCH = 20_000  # cases of one child
WAITING = 15  # times its seconds of computing may pass, for a case that waits or a machine that is busy


def in_children(
    count: int,
    seed: int,
    counts: Counter,
    one: Callable[[int, int], tuple[str, str | None]],
    *,
    seconds: float,
    memory: int | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> Iterator[str]:
    """Try `one(seed, number)` for each number below `count`. It returns the kind of the case, one of few,
    and what is wrong, or None. What it raises, a signal that ends its process, and more than `seconds` of
    computing are faults too. `memory`: bytes that a child may allocate beyond what it has; `prepare` runs
    in every child first.
    """
    next_ = faults = 0
    while next_ < count and faults < KEPT:
        done, end, found = _child(one, seed, next_, min(next_ + BATCH, count), seconds, memory, prepare)
        counts.update(done)
        next_ += sum(done.values())
        for number, what in [*found, *([(next_, end)] if end else [])]:
            yield f"seed {seed}, case {number}: {what}"
            faults += 1
        if end:
            counts["ended early"] += 1
            next_ += 1


def forked(function: Callable[[], int]) -> int:
    """The process that runs it, with one thread, and ends with the exit code that it returns."""
    sys.stdout.flush()
    sys.stderr.flush()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has none of the others
    if (child := os.fork()) == 0:
        code = 1
        try:
            code = function()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    torch.set_num_threads(threads)
    return child


def _child(one, seed, start, stop, seconds, memory, prepare):
    """(cases that ended, by kind; how the process ended early, or None; faults with their numbers)"""
    shared = mmap.mmap(-1, 8 * 64 + stop - start)  # a byte for each case that ended: its kind
    told, writes = os.pipe()

    def work() -> int:
        os.close(told)
        _work(one, seed, range(start, stop), memory, prepare, shared, writes)
        return 0

    child = forked(work)
    os.close(writes)
    end = _wait(child, shared, stop - start, seconds)
    with os.fdopen(told) as stream:
        lines = [json.loads(line) for line in stream if line.endswith("\n")]
    names = [line["kind"] for line in lines if "kind" in line]
    finished = shared[: stop - start].rstrip(b"\0")
    done = Counter({names[i - 1]: n for i, n in Counter(finished).items()})
    return done, end, [(line["number"], line["fault"]) for line in lines if "fault" in line][:KEPT]


def _work(one, seed, numbers, memory, prepare, shared, writes):
    if memory is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()  # pytest's: a fault says enough
    prepare()
    kinds: dict[str, int] = {}
    told = 0

    def say(**line):
        os.write(writes, (json.dumps(line) + "\n").encode())

    for at, number in enumerate(numbers):
        try:
            kind, fault = one(seed, number)
        except Exception:  # the harness's own, or an assertion
            kind, fault = "raised", _shortened(traceback.format_exc())
        if kind not in kinds:
            kinds[kind] = len(kinds) + 1
            say(kind=kind)
        if fault is not None and told < KEPT:  # or the pipe could fill up
            told += 1
            say(number=number, fault=fault[:1000])
        shared[at] = kinds[kind]


def _shortened(text: str) -> str:
    return text if len(text) < 900 else f"{text[:200]} ... {text[-700:]}"


def _computed(child: int) -> float:
    """Seconds of computing of a process: on a busy machine fewer than have passed."""
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait(child: int, shared: mmap.mmap, cases: int, seconds: float) -> str | None:
    """How the child ended, or None if it did all."""
    at, since, used = -1, time.monotonic(), 0.0
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        reached = shared.find(b"\0", max(at, 0), cases)
        if reached != at:
            at, since, used = reached, time.monotonic(), _computed(child)
        elif time.monotonic() - since > seconds and (
            _computed(child) - used > seconds or time.monotonic() - since > WAITING * seconds
        ):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"did not end within {seconds} s"
        time.sleep(0.01)
    code = os.waitstatus_to_exitcode(ended[1])
    if code < 0:
        return f"ended its process by {signal.Signals(-code).name}"
    return f"ended its process with exit code {code}" if code else None
