"""`Cached`, an object that caches data computed from it: the base of `SparsityPattern`.

Each object has one store of entries. An entry knows the versions of its tensors; reading it after one of them
was changed in place, which could send a kernel out of bounds, raises an error. Data that depends on one
pattern only lives as long as the pattern. Plans for several patterns, of which a program can make any number,
share one budget. On a CUDA device, reading an entry delays the reuse of its freed memory until the current
stream has done its work.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from learnsolve._library import drop_buffers
from learnsolve.matrix.budget import budget
from learnsolve.matrix.plain import constant_in_graphs, plain_tensors
from learnsolve.matrix.unchanged import Versions

_serials = itertools.count()
_by_serial: weakref.WeakValueDictionary[str, Cached] = weakref.WeakValueDictionary()


# The current stream of a device as a number. A Stream object takes as long to make as a kernel to launch.
_raw_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)


class Entry(Versions):
    """A cached value, and the versions of the tensors in it. It dies with its owner."""

    __slots__ = ("__weakref__", "key", "owner", "value")

    def __init__(self, value: Any, owner: Cached, key: str):
        super().__init__(_tensors(value))
        self.value, self.owner, self.key = value, weakref.ref(owner), key

    def check(self) -> None:
        for t, number in self.numbers:
            if t._version != number:
                raise changed()

    def bytes(self) -> int:
        return sum(_sizes(self.value, separate=False).values())

    def drop(self) -> None:
        owner = self.owner()
        if owner is not None:
            vars(owner._in_graphs).pop(self.key, None)
            owner._entries.pop(self.key, None)


class EntryOnDevice(Entry):
    """An entry of an object on a CUDA device. When memory is freed, the allocator makes it available to the
    stream it was allocated on; other streams that read it must be recorded, once each."""

    __slots__ = ("index", "streams")

    def __init__(self, value: Any, owner: Cached, key: str):
        super().__init__(value, owner, key)
        self.index, self.streams = owner._arrays[0].device.index, set[int]()
        self.record()

    def check(self) -> None:
        super().check()
        self.record()

    def record(self) -> None:
        number = _raw_stream(self.index)
        if number not in self.streams:
            stream = torch.cuda.current_stream(self.index)
            for t, _ in self.numbers:
                if t.is_cuda:
                    t.record_stream(stream)
            self.streams.add(number)


class EntriesOnDevice(dict[str, EntryOnDevice]):
    """The store of such an object."""

    def get(self, key: str, default: Any = None) -> Any:
        entry = super().get(key, default)
        if entry is not None:
            entry.record()
        return entry


class _InGraphs:
    """Data that compiled code reads: attributes, because Dynamo sees attributes that are set after it has
    read others, but assumes that a dictionary stays the same after the first read."""

    __slots__ = ("__dict__",)


class Cached:
    __slots__ = (
        "__weakref__",
        "_arrays",
        "_container",
        "_dependents",
        "_entries",
        "_entry",
        "_in_graphs",
        "_own",
        "_serial",
    )

    _arrays: tuple[Tensor, ...]
    _entry: type[Entry]

    def _begin(self, *arrays: Tensor) -> None:
        """Set the arrays of this object; nothing is cached yet."""
        set_ = object.__setattr__
        set_(self, "_arrays", arrays)
        # A separate class of store, so that reading has no overhead on the CPU.
        on_device = arrays[0].is_cuda
        set_(self, "_entry", EntryOnDevice if on_device else Entry)
        set_(self, "_own", self._entry(arrays, self, ""))
        set_(self, "_entries", EntriesOnDevice() if on_device else {})
        set_(self, "_in_graphs", _InGraphs())
        set_(self, "_serial", f"p{next(_serials)}")  # names this object in the keys of others
        _by_serial[self._serial] = self
        set_(self, "_dependents", None)  # plans of other objects that involve this one
        set_(self, "_container", None)  # the plan that includes this object and its entries

    def _check_unchanged(self) -> None:
        """Raise if the arrays differ from the validated ones, before an analysis or a kernel uses them."""
        self._own.check()

    def _is_unchanged(self) -> bool:
        """Whether neither the arrays nor data computed from them was changed in place."""
        return all(entry.unchanged() for entry in (self._own, *self._entries.values()))

    def _cached(self, key: str, make: Callable[..., Any], *arguments: Any) -> Any:
        """`make(*arguments)`, computed once per key."""
        if torch.compiler.is_dynamo_compiling():
            _analyze_while_tracing(self._serial)
            return getattr(self._in_graphs, key)
        # `check`, inlined twice: every operation comes here, mostly several times.
        for t, number in self._own.numbers:
            if t._version != number:
                raise changed()
        entry = self._entries.get(key)
        if entry is not None:
            for t, number in entry.numbers:
                if t._version != number:
                    raise changed()
            return entry.value
        value = self._make(make, *arguments)
        self._entries[key] = self._entry(value, self, key)
        self._count(value)
        return value

    def _analyze(self) -> None:
        """Compute everything for `_cached` that an operation may need, and `_show` it."""
        raise NotImplementedError

    def _show(self) -> None:
        """Let compiled code read everything that is cached."""
        vars(self._in_graphs).update({key: entry.value for key, entry in list(self._entries.items())})

    def _make(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """`make(*arguments)` with plain tensors. On a CUDA device every stream can use the result when this
        returns, since later calls may be on other streams."""
        device = self._arrays[0].device
        if device.type != "cuda":
            with plain_tensors():
                return make(*arguments)
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "SparsityPattern: an operation is captured in a CUDA graph before what it plans for its "
                "patterns is there. Run it once, forward and backward, before the capture."
            )
        with torch.cuda.device(device), plain_tensors():
            value = make(*arguments)
            torch.cuda.current_stream().synchronize()
        return value

    def _planned(self, make: Callable[..., Any], *others: Any) -> Any:
        """`make(self, *others)`, computed once: the plan of an operation for this object together with other
        objects or integers. The plan is freed with the first of the objects, so it must not hold any of
        `others`; or earlier, if many others were used since (`Budget`), and is then recomputed. It consists
        of tensors and patterns in tuples, so that they can be watched and counted."""
        key = _key(make, others)
        if torch.compiler.is_dynamo_compiling():
            names = [o._serial if isinstance(o, Cached) else o for o in others]
            _plan_while_tracing(self._serial, make, *names)
            return getattr(self._in_graphs, key)
        self._check_unchanged()
        for other in others:
            if isinstance(other, Cached):
                other._check_unchanged()
        entry = self._entries.get(key)
        if entry is not None:
            entry.check()
            if self._arrays[0].is_cuda and torch.cuda.is_current_stream_capturing():
                budget.pin(entry)  # the graph reads it whenever it is replayed
            else:
                budget.touch(entry)
            return entry.value
        return self._keep(key, self._make(make, self, *others), others)

    def _has_planned(self, make: Callable[..., Any], *others: Any) -> bool:
        return _key(make, others) in self._entries

    def _keep_planned(self, plan: Any, make: Callable[..., Any], *others: Any) -> None:
        """Store `plan`, which was obtained otherwise, as the plan that `make` would compute."""
        self._keep(_key(make, others), plan, others)

    def _keep(self, key: str, plan: Any, others: tuple = (), *, may_be_dropped: bool = False) -> Any:
        entry = self._entry(plan, self, key)
        for other in others:
            if isinstance(other, Cached) and other is not self:
                other._free_with(entry)
        if may_be_dropped or not all(other is None or isinstance(other, (bool, str)) for other in others):
            for part in _patterns(plan):
                part._count_to(weakref.ref(entry))
            budget.add(entry, self._serial)
        else:
            self._count(plan)  # there are only a few of this kind
        # Last: after an interrupt before this line, the plan is never found, and the next call makes another.
        self._entries[key] = entry
        return plan

    def _last(self, key: str) -> Any:
        """The value stored by `_keep_last`, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.check()
        budget.touch(entry)
        return entry.value

    def _keep_last(self, key: str, value: Any) -> None:
        """Store a value that depends on more than patterns, replacing the last one; the reader must check
        whether it matches. It may be dropped, like a plan."""
        self._keep(key, value, may_be_dropped=True)

    def _free_with(self, entry: Entry) -> None:
        """Drop a plan of another object when this object dies."""
        if self._dependents is None:
            dependents: weakref.WeakSet[Entry] = weakref.WeakSet()
            # The attribute comes last: an interrupt in between leaves dependents that are never dropped.
            weakref.finalize(self, _drop_all, dependents).atexit = False
            object.__setattr__(self, "_dependents", dependents)
        self._dependents.add(entry)

    def _count_to(self, container: weakref.ref[Entry]) -> None:
        """Make this object a part of a plan, which then includes the memory cached here."""
        if self._container is None or self._container() is None:
            object.__setattr__(self, "_container", container)

    def _count(self, value: Any) -> None:
        """Count `value`, now cached here, towards the plan that this object is a part of."""
        container = None if self._container is None else self._container()
        if container is not None:
            for part in _patterns(value):
                part._count_to(self._container)
            budget.grow(container)

    def cache_bytes(self) -> int:
        """Bytes held beyond the index arrays."""
        sizes = _sizes(tuple(entry.value for entry in list(self._entries.values())), seen={id(self)})
        for own in self._arrays:
            sizes.pop(own.data_ptr(), None)
        return sum(sizes.values())

    def drop_caches(self) -> None:
        """Free all cached data, which is recomputed when needed, and all memory kept of freed results
        (`ops.set_buffer_pool_limit`)."""
        drop_buffers()
        vars(self._in_graphs).clear()
        self._entries.clear()


def _key(make: Callable[..., Any], others: tuple) -> str:
    key = f"{make.__module__} {make.__name__}".replace(".", " ")  # Dynamo does not accept dots in attributes
    for other in others:
        key += f" {other._serial}" if isinstance(other, Cached) else f" {other}"
    return key


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
    elif isinstance(value, (Tensor, Cached)):
        yield value


def _patterns(value: Any) -> Iterator[Cached]:
    return (part for part in _parts(value) if isinstance(part, Cached))


def _tensors(value: Any) -> Iterator[Tensor]:
    for part in _parts(value):
        yield from part._arrays if isinstance(part, Cached) else (part,)


def _sizes(value: Any, seen: set[int] | None = None, separate: bool = True) -> dict[int, int]:
    """Bytes of each tensor in `value` and in the caches of its patterns, by address. `separate`: include
    plans there that are budgeted separately."""
    sizes: dict[int, int] = {}
    seen = set() if seen is None else seen
    pending = list(_parts(value))
    while pending:
        part = pending.pop()
        if isinstance(part, Tensor):
            sizes[part.data_ptr()] = part.numel() * part.element_size()
        elif id(part) not in seen:
            seen.add(id(part))
            entries = [e for e in list(part._entries.values()) if separate or not budget.counts(e)]
            pending += [*part._arrays, *_parts(tuple(entry.value for entry in entries))]
    return sizes


def _drop_all(entries: Iterable[Entry]) -> None:
    for entry in list(entries):
        entry.drop()


@constant_in_graphs
def _analyze_while_tracing(serial: str) -> bool:
    """Compute everything that an operation may need of a pattern, for real, while torch.compile traces, since
    it cannot trace the analysis. The argument is a string, as torch before 2.12 accepts no other object."""
    _by_serial[serial]._analyze()
    return True


@constant_in_graphs
def _plan_while_tracing(serial: str, make: Callable[..., Any], *names: Any) -> bool:
    """Compute a plan for real while torch.compile traces, so that compiled code can read it at any time."""
    owner, others = _by_serial[serial], tuple(_by_serial.get(name, name) for name in names)
    plan, key = owner._planned(make, *others), _key(make, others)
    budget.pin(owner._entries[key])
    setattr(owner._in_graphs, key, plan)
    return True
