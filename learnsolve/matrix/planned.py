"""`Planned`, an object that keeps what was computed for it: the base of `SparsityPattern`.

Everything kept is watched: a tensor that was changed in place since, which could send a kernel out of bounds,
is an error. Plans for a pattern together with others, of which a program can make any number, take bounded
memory (`plan_cache_limit`); what depends on one pattern alone lives as long as the pattern.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import plan_cache_limit
from learnsolve.matrix.buffer_pool_limit import drop_buffers
from learnsolve.matrix.plain import constant_in_graphs, plain_tensors

_GONE = object()
_serials = itertools.count()
_by_serial: weakref.WeakValueDictionary[str, Planned] = weakref.WeakValueDictionary()


class _Plans:
    """What `Planned._planned` keeps: attributes, because Dynamo sees those that are set after it has
    read others, but assumes that a dictionary stays as it was when first read."""

    __slots__ = ("__dict__", "__weakref__", "kept", "serial")

    def __init__(self, serial: str) -> None:
        self.serial = serial  # of whom they belong to
        self.kept: dict[str, _Kept] = {}  # about each attribute, by its name


class _Kept:
    """About one thing that is kept: which tensors are in it, and where it stands. It dies with it."""

    __slots__ = ("__weakref__", "key", "name", "plans", "watched")

    def __init__(self, value: Any, plans: _Plans | None = None, name: str = ""):
        self.watched = tuple((t, t._version) for t in _tensors(value))
        self.plans = None if plans is None else weakref.ref(plans)
        self.name = name
        self.key = ("" if plans is None else plans.serial, name)

    def check(self) -> None:
        for t, version in self.watched:
            if t._version != version:
                raise changed()

    def bytes(self) -> int:
        plans = None if self.plans is None else self.plans()
        return 0 if plans is None else sum(_sizes(vars(plans).get(self.name), alone=True).values())

    def drop(self) -> None:
        plans = None if self.plans is None else self.plans()
        if plans is not None:
            vars(plans).pop(self.name, None)
            plans.kept.pop(self.name, None)


class Planned:
    __slots__ = ("__weakref__", "_arrays", "_cache", "_holder", "_kept", "_plans", "_serial", "_users")

    _arrays: tuple[Tensor, ...]

    def _begin(self, *arrays: Tensor) -> None:
        """Keep the arrays that this object consists of, and nothing yet beyond them."""
        set_ = object.__setattr__
        set_(self, "_arrays", arrays)
        set_(self, "_kept", {None: _Kept(arrays)})  # about the arrays, and about the entries of _cache
        set_(self, "_cache", {})
        set_(self, "_serial", f"p{next(_serials)}")  # names this object in the plans of others
        set_(self, "_plans", _Plans(self._serial))
        _by_serial[self._serial] = self
        set_(self, "_users", None)  # plans of other objects that involve this one
        set_(self, "_holder", None)  # the plan that this object is a part of, which its caches count to

    def _check_unchanged(self) -> None:
        """No analysis and no kernel may use arrays that differ from the validated ones."""
        self._kept[None].check()

    def _is_unchanged(self) -> bool:
        """Neither the arrays nor what was computed from them was changed in place."""
        known = (*self._kept.values(), *self._plans.kept.values())
        return all(t._version == version for kept in known for t, version in kept.watched)

    def _cached(self, key: Any, make: Callable[..., Any], *arguments: Any) -> Any:
        """`make(*arguments)`, computed once for each key."""
        if torch.compiler.is_dynamo_compiling():
            _analyze_while_tracing(self._serial)
            return self._cache[key]
        # `check` twice, written out: every operation comes here, most of them several times.
        for t, version in self._kept[None].watched:
            if t._version != version:
                raise changed()
        kept = self._kept.get(key)
        if kept is not None:
            for t, version in kept.watched:
                if t._version != version:
                    raise changed()
            return self._cache[key]
        found = self._cache[key] = self._make(make, *arguments)
        self._kept[key] = _Kept(found)
        self._held(found)
        return found

    def _analyze(self) -> None:
        """Compute everything in `_cache` that an operation may need."""
        raise NotImplementedError

    def _make(self, make: Callable[..., Any], *others: Any) -> Any:
        """`make(*others)` among plain tensors. On a CUDA device every stream can use it when this returns,
        since later calls may be on other streams than the first."""
        device = self._arrays[0].device
        if device.type != "cuda":
            with plain_tensors():
                return make(*others)
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "SparsityPattern: an operation is captured in a CUDA graph before what it plans for its "
                "patterns is there. Run it once, forward and backward, before the capture."
            )
        with torch.cuda.device(device), plain_tensors():
            made = make(*others)
            torch.cuda.current_stream().synchronize()
        return made

    def _planned(self, make: Callable[..., Any], *others: Any) -> Any:
        """`make(self, *others)`, computed once: what an operation plans for this object together with
        others, or with numbers. The plan is freed with the first of the objects, so it must not hold any of
        `others`; or earlier, if many were used since (`plan_cache_limit`), and is then computed again.
        Tensors and patterns in tuples, so that they are watched and counted."""
        name = _name(make, others)
        if torch.compiler.is_dynamo_compiling():
            names = [o._serial if isinstance(o, Planned) else o for o in others]
            _plan_while_tracing(self._serial, make, *names)
            return getattr(self._plans, name)
        self._check_unchanged()
        for other in others:
            if isinstance(other, Planned):
                other._check_unchanged()
        # First the plan: another thread may drop it meanwhile, which then does it no harm.
        plan, kept = vars(self._plans).get(name, _GONE), self._plans.kept.get(name)
        if plan is not _GONE and kept is not None:
            kept.check()
            if self._arrays[0].is_cuda and torch.cuda.is_current_stream_capturing():
                plan_cache_limit.pin(kept)  # the graph will read it whenever it is replayed
            else:
                plan_cache_limit.touch(kept)
            return plan
        plan = self._make(make, self, *others)
        setattr(self._plans, name, plan)
        kept = _Kept(plan, self._plans, name)
        for other in others:
            if isinstance(other, Planned) and other is not self:
                other._free_with(kept)
        if all(other is None or isinstance(other, (bool, str)) for other in others):
            self._held(plan)  # there are a few of this kind
        else:
            for part in _patterns(plan):
                part._hold(weakref.ref(kept))
            plan_cache_limit.add(kept)
        # Last: an interrupt before leaves a plan that is never found, and the next call makes another.
        self._plans.kept[name] = kept
        return plan

    def _free_with(self, kept: _Kept) -> None:
        """Drop a plan of another object when this one dies."""
        if self._users is None:
            users: weakref.WeakSet[_Kept] = weakref.WeakSet()
            # The attribute comes last: an interrupt in between leaves no users that are never dropped.
            weakref.finalize(self, _drop_all, users).atexit = False
            object.__setattr__(self, "_users", users)
        self._users.add(kept)

    def _hold(self, holder: weakref.ref) -> None:
        """This object is a part of a plan: what is kept here counts to it."""
        if self._holder is None or self._holder() is None:
            object.__setattr__(self, "_holder", holder)

    def _held(self, value: Any) -> None:
        """Count `value`, which is kept here now, to the plan that this object is a part of."""
        holder = None if self._holder is None else self._holder()
        if holder is not None:
            for part in _patterns(value):
                part._hold(self._holder)
            plan_cache_limit.grow(holder)

    def cache_bytes(self) -> int:
        """Bytes held beyond the index arrays."""
        found = _sizes((*self._cache.values(), *vars(self._plans).values()), seen={id(self)})
        for own in self._arrays:
            found.pop(own.data_ptr(), None)
        return sum(found.values())

    def drop_caches(self) -> None:
        """Free what is cached, which is computed again when it is needed, and all memory that is kept of
        freed results (`ops.set_buffer_pool_limit`)."""
        drop_buffers()
        own = self._kept[None]
        self._cache.clear()
        self._kept.clear()
        self._kept[None] = own
        vars(self._plans).clear()
        self._plans.kept.clear()


def _name(make: Callable[..., Any], others: tuple) -> str:
    name = f"{make.__module__} {make.__name__}".replace(".", " ")  # Dynamo takes no dots in attributes
    for other in others:
        name += f" {other._serial}" if isinstance(other, Planned) else f" {other}"
    return name


def changed() -> RuntimeError:
    return RuntimeError(
        "SparsityPattern: its index arrays were changed in place after it was made, or arrays that were "
        "computed from them. Make a new pattern from a copy of the arrays."
    )


def _parts(value: Any) -> Iterator[Any]:
    """The tensors and patterns in nested tuples."""
    if isinstance(value, tuple):
        for part in value:
            yield from _parts(part)
    elif isinstance(value, (Tensor, Planned)):
        yield value


def _patterns(value: Any) -> Iterator[Planned]:
    return (part for part in _parts(value) if isinstance(part, Planned))


def _tensors(value: Any) -> Iterator[Tensor]:
    for part in _parts(value):
        yield from part._arrays if isinstance(part, Planned) else (part,)


def _sizes(value: Any, seen: set[int] | None = None, alone: bool = False) -> dict[int, int]:
    """Bytes of each tensor in `value` and in what its patterns keep, by its address. `alone`: without the
    plans there that count on their own (`plan_cache_limit`)."""
    found: dict[int, int] = {}
    seen = set() if seen is None else seen
    open_ = list(_parts(value))
    while open_:
        part = open_.pop()
        if isinstance(part, Tensor):
            found[part.data_ptr()] = part.numel() * part.element_size()
        elif id(part) not in seen:
            seen.add(id(part))
            kept = part._plans.kept
            plans = (
                plan
                for name, plan in list(vars(part._plans).items())
                if not (alone and plan_cache_limit.counts(kept.get(name)))
            )
            open_ += [*part._arrays, *_parts((*part._cache.values(), *plans))]
    return found


def _drop_all(users: Iterable[_Kept]) -> None:
    for kept in list(users):
        kept.drop()


@constant_in_graphs
def _analyze_while_tracing(serial: str) -> bool:
    """Everything that an operation may need of a pattern, actually computed while torch.compile traces, which
    cannot trace the analysis itself. All at once: Dynamo does not see what changes behind a dictionary that
    it has read. The argument is a string, because torch before 2.12 takes no other objects here."""
    _by_serial[serial]._analyze()
    return True


@constant_in_graphs
def _plan_while_tracing(serial: str, make: Callable[..., Any], *names: Any) -> bool:
    """A plan, actually computed while torch.compile traces, which may then read it at any time."""
    planned, others = _by_serial[serial], tuple(_by_serial.get(name, name) for name in names)
    planned._planned(make, *others)
    plan_cache_limit.pin(planned._plans.kept[_name(make, others)])
    return True
