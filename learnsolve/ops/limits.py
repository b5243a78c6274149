"""How much memory is kept between calls: plans (matrix/budget.py), and freed results (csrc/ops/buffers.h)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from learnsolve._library import swap_buffer_pool_limit
from learnsolve.matrix import checks
from learnsolve.matrix.budget import budget

swap_buffer_pool_limit(2**28)


def set_plan_cache_limit(bytes: int) -> int:
    """Set how many bytes the plans for combinations of patterns may take together.

    An operation on several patterns (`add`, `spgemm`, `hstack`, `kron`, ...), or on one with numbers
    (``A[2:5]``, `tril` and `diagonal` with k), plans once for each combination and keeps the plan while the
    patterns live. Beyond this limit the least recently used plans are freed, and computed again when needed;
    the last 16 are always kept, and so are those used by `torch.compile` or in a CUDA graph. When a plan is
    made for the third time, a warning says so, once after each setting.

    Parameters
    ----------
    bytes : int, 64 MiB at the start

    Returns
    -------
    int, the limit until now.

    Raises
    ------
    TypeError
        if bytes is not an int.
    ValueError
        if it is negative.

    Notes
    -----
    A plan counts with the pattern of its result and all that is cached there, if later than the plan when the
    next one is made. What belongs to one pattern
    only, such as its transpose, is kept as long as the pattern: see `SparsityPattern.drop_caches`.
    On the CPU `set_spgemm_plan_limit` decides whether the product of two matrices has a plan at all.

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
    """Set how much memory of freed results is kept for later ones, on the CPU.

    Results of operations and solvers, gradients and what a solver keeps for its backward lie in memory that
    is used again after their tensors are freed, if they have 256 KiB or more: fresh memory costs more time
    than many operations that write to it. Beyond the limit the blocks that were freed first go back to the
    system. All of them go with ``set_buffer_pool_limit(0)``, and with `SparsityPattern.drop_caches`.

    Parameters
    ----------
    bytes : int, 256 MiB at the start; 0 keeps nothing. A result larger than the limit is never kept.

    Returns
    -------
    int, the limit until now.

    Raises
    ------
    TypeError
        if bytes is not an int.
    ValueError
        if it is negative, or 2^63 or more.

    Notes
    -----
    Tensors that are alive do not count: the limit is for memory beyond them. torch's profiler does not see
    memory that is kept, and torch cannot enlarge such a tensor in place (`Tensor.resize_`); with
    ``set_buffer_pool_limit(0)`` results are ordinary tensors. torch 2.10 keeps nothing, whatever the limit. A
    process that is forked starts with nothing kept.

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
    """Every result is allocated by torch, whose profiler then sees it."""
    before = swap_buffer_pool_limit(0)
    try:
        yield
    finally:
        swap_buffer_pool_limit(before)
