"""How much memory the plans for several patterns may take together.

A program that combines matrices at random, batches of graphs say, makes a plan for each combination: those
that were not used for longest are dropped. A step of training that takes turns with more plans than fit would
then make all of them again in every step, for each is dropped just before its turn: that is warned of.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import OrderedDict
from typing import Any

_ALWAYS = 16  # the plans used last are kept, whatever their size: a step of training takes turns with a few

_KNOWN = 2**12  # names of dropped plans that are known: about 1 MB

_limit = 2**26
_total = 0
# By address, least recently used first: a weak reference to what is known of a plan, and its bytes.
_plans: OrderedDict[int, tuple[weakref.ref, int]] = OrderedDict()
# How often plans were dropped, by the serial of the pattern that keeps one and its name, last dropped last.
_dropped: OrderedDict[tuple[str, str], int] = OrderedDict()
_warned = False
_gone: Any = lambda: None  # noqa: E731  a reference to a plan that is freed
_lock = threading.RLock()  # the backward of a CUDA tensor runs in a thread of its own


def set_plan_cache_limit(bytes: int) -> int:
    """Set how many bytes the plans for combinations of patterns may take together.

    An operation on several patterns (`add`, `spgemm`, `hstack`, `kron`, ...), or on one with numbers
    (``A[2:5]``, `tril` and `diagonal` with k), plans once for each combination and keeps the plan while the
    patterns live. Beyond this limit the plans not used for longest are freed, and computed again when needed;
    the 16 used last are always kept, and so are those used by `torch.compile` or in a CUDA graph. When a
    plan is made for the third time, a warning says so, once after each setting.

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
    A plan counts with the pattern of its result and all that is cached there. What belongs to one pattern
    alone, such as its transpose, is kept as long as the pattern: see `SparsityPattern.drop_caches`.
    `set_spgemm_plan_limit` decides whether the product of two matrices has a plan at all.

    Examples
    --------
    >>> import learnsolve as ls
    >>> before = ls.ops.set_plan_cache_limit(2**30)
    >>> ls.ops.set_plan_cache_limit(before) == 2**30
    True
    """
    global _limit, _warned
    if isinstance(bytes, bool) or not isinstance(bytes, int):
        raise TypeError(f"set_plan_cache_limit: bytes must be an int, got {type(bytes).__name__}")
    if bytes < 0:
        raise ValueError(f"set_plan_cache_limit: bytes must not be negative, got {bytes}")
    with _lock:
        before, _limit, _warned = _limit, bytes, False
        _dropped.clear()
        _drop_beyond_limit()
    return before


def add(kept: Any) -> None:
    """A new plan, used now."""
    global _warned
    key = id(kept)
    with _lock:
        _forget(key)  # of a plan that was freed while an interrupt kept `_forget` from running
        _plans[key] = weakref.ref(kept, lambda _: _forget(key)), 0
        grow(kept)
        again = not _warned and _dropped.get(kept.key, 0) >= 2
        _warned = _warned or again
    if again:
        warnings.warn(
            f"set_plan_cache_limit: the plans in use take more than the limit of {_limit} bytes, so they are "
            "dropped and made again and again, which takes time; raise it with "
            "ops.set_plan_cache_limit(bytes)",
            stacklevel=2,
        )


def touch(kept: Any) -> None:
    """The plan is used now."""
    with _lock:
        if id(kept) in _plans:
            _plans.move_to_end(id(kept))


def grow(kept: Any) -> None:
    """More is kept with the plan than before."""
    global _total
    key = id(kept)
    with _lock:
        if key in _plans:
            now = kept.bytes()
            reference, size = _plans[key]
            # In one line, without a call between: an interrupt (Ctrl-C) may come with every call.
            _total, _plans[key] = _total + now - size, (reference, now)
            _drop_beyond_limit()


def counts(kept: Any) -> bool:
    """Does the plan count on its own?"""
    return id(kept) in _plans


def pin(kept: Any) -> None:
    """The plan must stay while its patterns live."""
    _forget(id(kept))


def _forget(key: int) -> None:
    global _total
    with _lock:
        if key in _plans:
            _total, _plans[key] = _total - _plans[key][1], (_gone, 0)  # see `grow`
            del _plans[key]


def _drop_beyond_limit() -> None:
    while _total > _limit and len(_plans) > _ALWAYS:
        key, (reference, _) = next(iter(_plans.items()))
        kept = reference()
        _forget(key)
        if kept is not None:
            _dropped[kept.key] = _dropped.pop(kept.key, 0) + 1
            if len(_dropped) > _KNOWN:
                _dropped.popitem(last=False)
            kept.drop()
