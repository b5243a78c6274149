"""How much memory the plans for several patterns may take together.

A program that combines matrices at random, batches of graphs say, makes a plan for each combination: those
that were not used for longest are dropped.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Any

_ALWAYS = 16  # the plans used last are kept, whatever their size: a step of training takes turns with a few

_limit = 2**28
_total = 0
# By address, least recently used first: a weak reference to what is known of a plan, and its bytes.
_plans: OrderedDict[int, tuple[weakref.ref, int]] = OrderedDict()
_lock = threading.RLock()  # the backward of a CUDA tensor runs in a thread of its own


def set_plan_limit(bytes: int) -> int:
    """Set how many bytes the plans for combinations of patterns may take together.

    An operation on several patterns (`add`, `spgemm`, `hstack`, `kron`, ...), or on one with numbers
    (``A[2:5]``, `tril` and `diagonal` with k), plans once for each combination and keeps the plan while the
    patterns live. Beyond this limit the plans not used for longest are freed, and computed again when needed;
    the 16 used last are always kept, and so are those used by `torch.compile` or in a CUDA graph.

    Parameters
    ----------
    bytes : int, 256 MiB at the start

    Returns
    -------
    int, the limit until now.

    Notes
    -----
    A plan counts with the pattern of its result and all that is cached there. What belongs to one pattern
    alone, such as its transpose, is kept as long as the pattern: see `SparsityPattern.drop_caches`.
    `set_spgemm_plan_limit` decides whether the product of two matrices has a plan at all.

    Examples
    --------
    >>> import learnsolve as ls
    >>> before = ls.ops.set_plan_limit(2**30)
    >>> ls.ops.set_plan_limit(before) == 2**30
    True
    """
    global _limit
    if isinstance(bytes, bool) or not isinstance(bytes, int):
        raise TypeError(f"set_plan_limit: bytes must be an int, got {type(bytes).__name__}")
    if bytes < 0:
        raise ValueError(f"set_plan_limit: bytes must not be negative, got {bytes}")
    with _lock:
        before, _limit = _limit, bytes
        _drop_beyond_limit()
    return before


def add(kept: Any) -> None:
    """A new plan, used now."""
    key = id(kept)
    with _lock:
        _plans[key] = weakref.ref(kept, lambda _: _forget(key)), 0
        grow(kept)


def touch(kept: Any) -> None:
    """The plan is used now."""
    with _lock:
        if id(kept) in _plans:
            _plans.move_to_end(id(kept))


def grow(kept: Any) -> None:
    """More is kept with the plan than before."""
    global _total
    with _lock:
        if id(kept) in _plans:
            reference, size = _plans[id(kept)]
            now = kept.bytes()
            _total += now - size
            _plans[id(kept)] = reference, now
            _drop_beyond_limit()


def pin(kept: Any) -> None:
    """The plan must stay while its patterns live."""
    _forget(id(kept))


def _forget(key: int) -> None:
    global _total
    with _lock:
        _, size = _plans.pop(key, (None, 0))
        _total -= size


def _drop_beyond_limit() -> None:
    while _total > _limit and len(_plans) > _ALWAYS:
        key, (reference, _) = next(iter(_plans.items()))
        kept = reference()
        _forget(key)
        if kept is not None:
            kept.drop()
