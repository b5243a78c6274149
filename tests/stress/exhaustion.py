"""A call that runs out of memory, wherever it does, says so and leaves matrices, plans and caches as before.

The address space of a process is limited to a random number of bytes beyond what it has. The call must raise
MemoryError, or torch's RuntimeError about memory; without the limit the same call on the same objects must
then give the bits of one that was left alone, and what is known of the memory of plans must add up.
"""

import ctypes
import os
import resource
from pathlib import Path

import numpy as np
import torch

from ._calls import CALLS, quiet
from ._children import run_cases
from ._report import Report
from ._samples import KINDS, Sample, digest
from .interrupts import harm

SHORT = 20
ENTRIES = 60_000  # of a matrix: a tensor of its values is a mapping of its own
WORDS = ("memory", "alloc")  # of an error about memory
NONE = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def run(count: int, seed: int) -> Report:
    """`count` calls, most of which run out of memory."""
    return run_cases("exhaustion", count, seed, one, seconds=60, prepare=_map_all)


def _map_all() -> None:
    """Every allocation from 64 KiB on is a mapping of its own, which goes back to the system when freed."""
    threshold = -3  # M_MMAP_THRESHOLD
    ctypes.CDLL(None).mallopt(threshold, 2**16)
    torch.set_num_threads(1)


def one(seed: int, number: int) -> tuple[str, str | None]:
    rng = np.random.default_rng((seed, number))
    name = str(rng.choice(list(CALLS)))
    call = CALLS[name]
    while True:
        kind = str(rng.choice(list(KINDS)))
        s = Sample.draw(kind, int(rng.integers(2**31)), min(ENTRIES, call.light))
        if call.takes(s):
            break
    leaves = call.make(s)

    def results() -> list[bytes]:
        return [digest(t) for t in call.tensors(s, leaves)]

    with quiet():
        wanted = results()
        s.fresh()
        more = int(10 ** rng.uniform(4.5, 7))
        error = _within(more, results)
        if error is None:
            return "had enough", None
        # Python's own code can lose a MemoryError, and then raises SystemError.
        known = isinstance(error, (MemoryError, SystemError))
        if not known and not any(word in str(error) for word in WORDS):
            return "failed", f"{name}, {kind}: {type(error).__name__} for want of memory: {error}"
        found = harm(results, wanted)
        if not torch.is_grad_enabled():
            found.append("gradients are off")
    return "failed", f"{name}, {kind}: after a failed allocation {found}" if found else None


def _within(more: int, results) -> Exception | None:
    """What the call raises with `more` bytes of address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + more, NONE[1]))
    try:
        results()
    except Exception as error:
        return error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, NONE)
    return None
