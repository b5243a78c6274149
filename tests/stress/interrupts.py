"""An interrupt (Ctrl-C) at any moment of a call leaves matrices, plans and caches as good as before.

A call on a pattern without plans is interrupted, by a signal of a timer or at a line in the library. The
same call on the same objects must then give the bits of one that was left alone, and what is known of the
memory of plans must add up.
"""

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import learnsolve
from learnsolve.matrix.cache import budget
from learnsolve.ops.core import superlu

from ._calls import CALLS, Call, quiet
from ._report import Report
from ._samples import KINDS, Sample, digest

SHORT = 24
LIBRARY = str(Path(learnsolve.__file__).parent)


def run(count: int, seed: int) -> Report:
    """`count` interrupts that were heard."""
    start, report, counts, rng = (
        time.perf_counter(),
        Report("interrupts"),
        Counter(),
        np.random.default_rng(seed),
    )
    names, i = list(CALLS), 0
    budget.set_limit(budget.set_limit(2**26))
    while counts["by a signal"] + counts["at a line"] < count and i < 20 * count:
        i += 1
        name, kind = names[int(rng.integers(len(names)))], list(KINDS)[i % len(KINDS)]
        s = Sample.draw(kind, int(rng.integers(2**31)), 1500)
        if not CALLS[name].takes(s):
            continue
        with quiet():
            report.faults += _one(s, name, CALLS[name], rng, counts, f"{name}, {kind}, seed {seed}, case {i}")
    report.counts, report.seconds = dict(counts), time.perf_counter() - start
    return report


def _one(
    s: Sample, name: str, call: Call, rng: np.random.Generator, counts: Counter, where: str
) -> list[str]:
    leaves = call.make(s)

    def results() -> list[bytes]:
        return [digest(t) for t in call.tensors(s, leaves)]

    # With plans first, then without: what is drawn is a part of the second.
    wanted = results()
    s.fresh()
    if how := int(rng.integers(2)):
        begin = time.perf_counter()
        results()
        span = rng.random() * (time.perf_counter() - begin)
        s.fresh()
        heard = _interrupted(results, lambda: signal.setitimer(signal.ITIMER_REAL, max(span, 1e-5)))
    else:
        lines = Lines()
        with lines:
            results()
        s.fresh()
        at = int(rng.integers(1, lines.seen + 1))
        heard = _interrupted(results, Lines(at).__enter__)
        let_go()
    if not heard:
        return []
    counts["by a signal" if how else "at a line"] += 1
    if not torch.is_grad_enabled():  # torch.no_grad is Python: its own __enter__ or __exit__ was interrupted
        counts["torch.no_grad left on"] += 1
        torch.set_grad_enabled(True)
    return [f"{where}: after an interrupt {what}" for what in harm(results, wanted)]


def harm(results: Callable[[], list[bytes]], wanted: list[bytes]) -> list[str]:
    """What is wrong after a call that failed: with the same call again, or with the memory of plans."""
    found = []
    try:
        if results() != wanted:
            found.append("the results are others")
    except Exception as error:  # of any kind: it is what the harness looks for
        found.append(f"{type(error).__name__}: {error}")
    with budget.lock:
        total, known = budget.total, sum(size for _, size in budget.entries.values())
    if total != known:
        found.append(f"plans of {known} bytes count as {total}")
        budget.total = known
    return found


def _interrupted(results: Callable[[], Any], arm: Callable[[], Any]) -> bool:
    """Whether KeyboardInterrupt came out of the call."""

    def handler(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        try:
            arm()
            results()
        finally:  # where a late signal is still heard
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.settrace(None)
    except KeyboardInterrupt:
        return True
    finally:
        signal.signal(signal.SIGALRM, before)
    return False


def let_go() -> None:
    """Release the library's locks. A trace function may raise where no signal does: at the line of a `with`
    that is about to leave its block (CPython looks for signals after calls, which are inside of it)."""
    while budget.lock._is_owned():
        budget.lock.release()
    if superlu._recent.lock.locked():
        superlu._recent.lock.release()


class Lines:
    """Counts the lines run in files, by default the library's; KeyboardInterrupt at one of them."""

    def __init__(self, at: int = 0, files: tuple[str, ...] = (LIBRARY,)):
        self.at, self.files, self.seen = at, files, 0

    def __enter__(self) -> None:
        sys.settrace(self._call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self.files) else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.seen += 1
            if self.seen == self.at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._line
