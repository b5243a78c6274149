"""When the host checks a solve to a tolerance that runs on a device.

A check waits for the device, which then waits for the host to launch the next iteration. Between two checks
columns that seem done stand still: a late check costs the iterations after the last one stopped, which are
not part of a graph.
"""

from collections.abc import Callable

from learnsolve.matrix import checks

_every: int | None = None  # None: as `_unhurried` says
# A short solve may have a costly M; a long one must not be slowed down. Not measured.
_SHARE, _LONGEST = 8, 32


def set_check_every(iterations: int | None) -> int | None:
    """Set how often (in iterations) convergence is checked on a CUDA device, in solves to a tolerance.

    A check waits for the device. Columns that seemed done since the last one, and stood still from there, are
    then confirmed by their true residual: `x`, `iterations` and `residual_norms` are those of checks after
    every iteration, unless a recurrence was wrong and starts again (`minres`, which watches its own, does so
    in every eighth iteration). Checking rarely wastes the iterations after the last column has stopped; M
    is called in these too.

    Parameters
    ----------
    iterations : int, at least 1; None, as at the start: after an eighth of those that ran, 32 at most (the
        compiled loop of `cg`, where iterations after the last cost next to nothing: 32, 64, 128, ...)

    Returns
    -------
    int or None, the previous setting. The new one holds for solves that begin later, in all threads. A CPU,
    and a solve with a callback, are checked after every iteration; gradient="checkpointed" also at the end of
    every segment, after 1, 3, 6, 10, ... iterations.

    Raises
    ------
    TypeError, ValueError
        if iterations is not an int, or less than 1.

    Examples
    --------
    >>> import learnsolve as ls
    >>> before = ls.solvers.set_check_every(10)
    >>> ls.solvers.set_check_every(before)
    10
    """
    global _every
    if iterations is not None:
        iterations = checks.integer("set_check_every", "iterations", iterations, 1)
    before, _every = _every, iterations
    return before


def check_every() -> int | None:
    return _every


def gaps() -> Callable[[int], int]:
    """The number of iterations to the next check, as a function of those that ran."""
    every = _every
    return _unhurried if every is None else lambda done: every


def _unhurried(done: int) -> int:
    return min(max(1, done // _SHARE), _LONGEST)
