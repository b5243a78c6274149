"""Limits of memory kept between calls: plans (matrix/cache.py) and freed results (csrc/ops/buffers.h)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from learnsolve._library import swap_buffer_pool_limit
from learnsolve.matrix import checks
from learnsolve.matrix.cache import budget

swap_buffer_pool_limit(2**28)


def set_plan_cache_limit(bytes: int) -> int:
    """Set the total size of cached plans for combinations of patterns, in bytes.

    An operation on several patterns (`add`, `spgemm`, `hstack`, `kron`, ...), or on a pattern and integers
    (``A[2:5]``, `tril` and `diagonal` with k), plans once per combination and caches the plan while the
    patterns live. Beyond this limit the least recently used plans are freed and recomputed when needed; the
    last 16 plans are always kept, and so are plans used by `torch.compile` or in a CUDA graph. When a plan is
    computed for the third time, a warning is issued, once after each setting.

    Parameters
    ----------
    bytes : int, initially 64 MiB

    Returns
    -------
    int, the previous limit.

    Raises
    ------
    TypeError
        if bytes is not an int.
    ValueError
        if bytes is negative.

    Notes
    -----
    The size of a plan includes the pattern of its result and everything cached there; later additions are
    counted when the next plan is made. Data of a single pattern, such as its transpose, is kept as long as
    the pattern: see `SparsityPattern.drop_caches`. On the CPU, `set_spgemm_plan_limit` decides whether the
    product of two matrices has a plan at all.

    Examples
    --------
    >>> import learnsolve as ls
    >>> before = ls.ops.set_plan_cache_limit(2**30)
    >>> ls.ops.set_plan_cache_limit(before) == 2**30
    True
    """
    checks.memory("set_plan_cache_limit", bytes)
    return budget.set_limit(bytes)


def set_buffer_pool_limit(bytes: int) -> int:
    """Set how much memory of freed results is kept for reuse on the CPU.

    Results of operations and solvers, gradients and saved tensors of 256 KiB or more use memory that is
    reused after their tensors are freed, because allocating fresh memory takes longer than many operations
    that write to it. Beyond the limit, the blocks freed first are returned to the system.
    ``set_buffer_pool_limit(0)`` and `SparsityPattern.drop_caches` return all of them.

    Parameters
    ----------
    bytes : int, initially 256 MiB; 0 keeps nothing. A result larger than the limit is never kept.

    Returns
    -------
    int, the previous limit.

    Raises
    ------
    TypeError
        if bytes is not an int.
    ValueError
        if bytes is negative, or 2^63 or more.

    Notes
    -----
    Memory of live tensors does not count towards the limit. torch's profiler does not see memory that is
    kept, and torch cannot enlarge such a tensor in place (`Tensor.resize_`); with
    ``set_buffer_pool_limit(0)`` results are ordinary tensors. With torch 2.10 nothing is kept, whatever the
    limit. A forked process starts with nothing kept.

    Examples
    --------
    >>> import learnsolve as ls
    >>> before = ls.ops.set_buffer_pool_limit(2**30)
    >>> ls.ops.set_buffer_pool_limit(before) == 2**30
    True
    """
    if isinstance(bytes, bool) or not isinstance(bytes, int):
        raise TypeError(f"set_buffer_pool_limit: bytes must be an int, got {type(bytes).__name__}")
    if not 0 <= bytes < 2**63:
        raise ValueError(f"set_buffer_pool_limit: bytes must be from 0 to 2^63 - 1, got {bytes}")
    return swap_buffer_pool_limit(bytes)


@contextmanager
def without_buffer_pool() -> Iterator[None]:
    """Inside, torch allocates every result, so that its profiler sees it."""
    before = swap_buffer_pool_limit(0)
    try:
        yield
    finally:
        swap_buffer_pool_limit(before)
