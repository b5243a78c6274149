"""The memory budget of plans for several patterns, and which plans are dropped."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from learnsolve.matrix.cache import Entry


class Budget:
    """The memory budget of plans for several patterns.

    A program that combines matrices at random, such as batches of graphs, makes a plan per combination; the
    least recently used are dropped. A training step that cycles through more plans than fit would recompute
    all of them in every step, since each is dropped just before its next use; a warning says so.
    """

    always = 16  # the last plans are kept, whatever their size: a training step cycles through a few
    known = 2**12  # keys of dropped plans that are remembered: about 1 MB

    def __init__(self, limit: int):
        self.limit, self.counted, self.warned = limit, 0, False
        # By address, least recently used first: a weak reference to an entry, and its bytes.
        self.entries: OrderedDict[int, tuple[Callable[[], Entry | None], int]] = OrderedDict()
        self.grown = set[int]()  # addresses of plans that have grown since they were counted
        # How often a plan was dropped, by the serial of its owner and its key, most recent last.
        self.drops: OrderedDict[tuple[str, str], int] = OrderedDict()
        self.lock = threading.RLock()  # the backward of a CUDA tensor runs in a separate thread

    @property
    def total(self) -> int:
        """Bytes of all plans."""
        with self.lock:
            for address in list(self.grown):
                self._count(address)
            return self.counted

    def set_limit(self, limit: int) -> int:
        """Set the limit; the previous one."""
        with self.lock:
            before, self.limit, self.warned = self.limit, limit, False
            self.drops.clear()
            self._drop_beyond_limit()
        return before

    def add(self, entry: Entry, serial: str) -> None:
        """Add a new plan, used now, of the object with this serial."""
        address = id(entry)
        with self.lock:
            self._forget(address)  # of an entry that was freed while an interrupt kept `_forget` from running
            self.entries[address] = weakref.ref(entry, lambda _: self._forget(address)), 0
            self.grown.add(address)
            self._drop_beyond_limit()
            repeated = not self.warned and self.drops.get((serial, entry.key), 0) >= 2
            self.warned = self.warned or repeated
        if repeated:
            warnings.warn(
                f"set_plan_cache_limit: the plans in use take more than the limit of {self.limit} bytes, so "
                "they are dropped and made again and again, which takes time; raise it with "
                "ops.set_plan_cache_limit(bytes)",
                stacklevel=2,
            )

    def touch(self, entry: Entry) -> None:
        """Mark the plan as used now."""
        with self.lock:
            if id(entry) in self.entries:
                self.entries.move_to_end(id(entry))

    def grow(self, entry: Entry) -> None:
        """The plan has grown. It is counted when the next plan is added, because many things are computed for
        its patterns at once."""
        with self.lock:
            if id(entry) in self.entries:
                self.grown.add(id(entry))

    def _count(self, address: int) -> None:
        reference, _ = self.entries.get(address, (_freed, 0))
        entry = reference()
        if entry is not None:
            size = entry.bytes()
            before = self.entries[address][1]
            # In one line, without a call between: an interrupt (Ctrl-C) may come with every call.
            self.counted, self.entries[address] = self.counted + size - before, (reference, size)
        self.grown.discard(address)

    def counts(self, entry: Entry) -> bool:
        return id(entry) in self.entries

    def pin(self, entry: Entry) -> None:
        """Keep the plan while its patterns live."""
        self._forget(id(entry))

    def _forget(self, address: int) -> None:
        with self.lock:
            if address in self.entries:
                # As in `_count`.
                self.counted, self.entries[address] = self.counted - self.entries[address][1], (_freed, 0)
                del self.entries[address]
            self.grown.discard(address)

    def _drop_beyond_limit(self) -> None:
        while self.total > self.limit and len(self.entries) > self.always:
            address, (reference, _) = next(iter(self.entries.items()))
            entry = reference()
            self._forget(address)
            owner = None if entry is None else entry.owner()
            if entry is not None and owner is not None:
                key = owner._serial, entry.key
                self.drops[key] = self.drops.pop(key, 0) + 1
                if len(self.drops) > self.known:
                    self.drops.popitem(last=False)
                entry.drop()


budget = Budget(2**26)


def _freed() -> None:
    """A reference to a freed entry."""
