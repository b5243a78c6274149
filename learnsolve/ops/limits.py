"""The limit of the memory of freed results that is kept (csrc/ops/buffers.h)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from learnsolve._library import swap_buffer_pool_limit

swap_buffer_pool_limit(2**28)


@contextmanager
def without_buffer_pool() -> Iterator[None]:
    """Inside, torch allocates every result, so that its profiler sees it."""
    before = swap_buffer_pool_limit(0)
    try:
        yield
    finally:
        swap_buffer_pool_limit(before)
