"""`CacheOwner`, an object that caches data computed from it: the base of `SparsityPattern`.

Each object has one store of entries. An entry knows the versions of its tensors. Reading it after one of them
was changed in place, which could send a kernel out of bounds, raises an error. Data that depends on one
pattern only lives as long as the pattern. Plans for several patterns, of which a program can make any number,
share one budget. On a CUDA device, reading an entry delays the reuse of its freed memory until the current
stream has done its work.
"""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch._C._functorch import (
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    maybe_get_bdim,
    maybe_get_level,
    peek_interpreter_stack,
)
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.autograd import forward_ad

from learnsolve._library import drop_buffers

try:
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
except ImportError:  # private names of torch
    set_code_exec_strategy = None

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Tensors created inside are ordinary ones, whatever the context of the caller. Cached and shared data of
    a pattern must not belong to a `torch.func` transformation or to inference mode."""
    with torch.inference_mode(False), torch._C._DisableFuncTorch():
        yield


def readable(v: Tensor) -> bool:
    """Whether Python may read the values of `v`: not under transformations, under `torch.compile`, while
    operations are recorded, or on a GPU."""
    if torch.compiler.is_dynamo_compiling() or type(v) not in (Tensor, torch.nn.Parameter) or not v.is_cpu:
        return False
    if is_legacy_batchedtensor(v) or torch._C._is_tracing():
        return False
    return not (torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack())


def innermost(t: Tensor) -> Tensor:
    """The plain tensor behind all levels of `torch.func`."""
    while is_functorch_wrapped_tensor(t):
        t = get_unwrapped(t)
    return t


def vmap_active(t: Tensor) -> bool:
    """Whether a vmap is active on this tensor, at any level."""
    while is_functorch_wrapped_tensor(t):
        if is_batchedtensor(t):
            return True
        t = get_unwrapped(t)
    return False


def unwrap_values(t: Tensor) -> Tensor:
    """The tensor behind one that `torch.func` differentiates, for values without a derivative."""
    if vmap_active(t):
        raise NotImplementedError(
            "patterns, index arrays, files and arrays of NumPy cannot be made from a tensor that "
            "torch.func.vmap maps over. Make them outside of the transformed function, and map over values, "
            "learnsolve.CSR(values, pattern)"
        )
    return innermost(t)


def run_as_operation(run: Callable[[], T], inputs: Sequence[Tensor], dims: Sequence[int]) -> T:
    """`run()`, a solve whose first result depends on `inputs` along `dims`: a dispatch mode with a method of
    this name (nonlinear/_trace.py) takes it as one operation."""
    mode = _follower()
    return run() if mode is None else mode.run_as_operation(run, inputs, dims)


def _follower() -> Any:
    modes = torch._C._len_torch_dispatch_stack()
    mode = torch._C._get_dispatch_stack_at(modes - 1) if modes else None
    return mode if hasattr(mode, "run_as_operation") else None


def chooses(function: Callable[P, T]) -> Callable[P, T]:
    """The values that `function` reads decide how it solves, not what its results depend on."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        mode = _follower()
        if mode is None or mode.choosing:
            return function(*args, **kwargs)
        mode.choosing = True
        try:
            return function(*args, **kwargs)
        finally:
            mode.choosing = False

    return call


def outside_of_graphs(function: Callable[P, T], why: str | None = None) -> Callable[P, T]:
    """`torch.compile` does not trace `function`: it breaks its graph there, or, with `fullgraph=True`, raises
    an error that says `why`.

    Like `torch.compiler.disable`, but without loading Dynamo here, which takes seconds.
    """
    if set_code_exec_strategy is None:
        return torch.compiler.disable(function, reason=why)  # type: ignore[return-value]
    function._torchdynamo_disable_msg = why  # type: ignore[attr-defined]
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # called while Dynamo traces
    # Called by compiled code, after the graph break: neither this frame nor those below it are compiled.
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, skip)  # type: ignore[attr-defined]
    return function


def constant_in_graphs(function: Callable[P, T]) -> Callable[P, T]:
    """`torch.compile` calls `function` while it traces and treats the result as a constant: the mark set by
    `torch.compiler.assume_constant_result`, without loading Dynamo."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def makes_plain_tensors(make: Callable[P, T]) -> Callable[P, T]:
    """Run `make` within `plain_tensors`, and outside the graph that `torch.compile` traces."""

    @wraps(make)
    def outside(*args: P.args, **kwargs: P.kwargs) -> T:
        with plain_tensors():
            return make(*args, **kwargs)

    return outside_of_graphs(outside)


def numbers(t: Tensor) -> Tensor:
    """The values of a tensor under torch.func transformations, mapped axes first."""
    axes: list[int] = []  # of each map, outermost first, in the tensor that it holds
    while is_functorch_wrapped_tensor(t):
        if is_batchedtensor(t):
            axes.append(maybe_get_bdim(t))
        t = get_unwrapped(t)
    for i, dim in enumerate(reversed(axes)):
        t = t.movedim(dim + i, i)
    return t.detach()


def sample(t: Tensor) -> Tensor:
    """The values of a tensor under torch.func transformations, of the first index of each map: a plain
    tensor, also at the levels of the transformations."""
    with plain_tensors():
        values = numbers(t)
        return values[(0,) * (values.dim() - t.dim())]


def carries_graph(t: Tensor) -> bool:
    """Whether t requires grad or has a tangent, at any level of torch.func."""
    if t.requires_grad or torch.compiler.is_dynamo_compiling():
        return t.requires_grad
    return innermost(t).requires_grad or bool(transformations(t) - {"vmap"})


def transformations(t: Tensor) -> set[str]:
    """What acts on t at any level: torch.func's "grad", "jvp" and "vmap", and "dual", forward mode outside of
    torch.func. Each level is looked at from within: from above, the tangents of a lower one are not
    visible."""
    interpreter = peek_interpreter_stack()
    if interpreter is None:
        return {"dual"} if forward_ad.unpack_dual(t).tangent is not None else set()
    acting: set[str] = set()
    if is_functorch_wrapped_tensor(t) and maybe_get_level(t) == interpreter.level():
        if is_batchedtensor(t):
            acting.add("vmap")
        else:
            acting |= {"grad"} if t.requires_grad else set()
            acting |= {"jvp"} if forward_ad.unpack_dual(t).tangent is not None else set()
        t = get_unwrapped(t)
    with temporarily_pop_interpreter_stack():
        return acting | transformations(t)


class Immutable:
    """The constructor sets attributes by ``object.__setattr__``. Afterwards they cannot be set or deleted."""

    __slots__ = ()

    _instead: str  # what to do instead

    def __setattr__(self, name: str, value: object) -> None:
        self._refuse(name, "set")

    def __delattr__(self, name: str) -> None:
        self._refuse(name, "deleted")

    def _refuse(self, name: str, what: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be {what}. {self._instead}")


class Versions:
    """The versions of tensors, to detect later in-place changes. A copy starts anew.

    Uses torch's versions, which changes through ``.data`` and by fused optimizers do not increase. Parameters
    (leaves that require grad) are also compared by value, which detects those changes.
    """

    __slots__ = ("copies", "numbers")

    def __init__(self, tensors: Iterable[Tensor]):
        self.numbers, self.copies = (), ()
        for t in tensors:
            if (number := version(t)) >= 0:
                self.numbers += ((t, number),)
                if t.requires_grad and t.is_leaf:
                    self.copies += ((t, t.detach().clone()),)

    def is_current(self) -> bool | Tensor:
        """A tensor if values on a CUDA device were compared, since reading it would synchronize."""
        if any(version(t) not in (number, -1) for t, number in self.numbers):
            return False
        on_device = []
        for t, copy in self.copies:
            if version(t) < 0:
                continue
            if t.is_cuda:
                on_device.append(torch.isclose(t.detach(), copy, rtol=0.0, atol=0.0, equal_nan=True).all())
            elif not _equal(t.detach(), copy):
                return False
        return torch.stack(on_device).all() if on_device else True

    def __reduce__(self):
        return Versions, ([t for t, _ in self.numbers],)


def version(t: Tensor) -> int:
    """-1 for tensors without a meaningful version."""
    if torch.compiler.is_dynamo_compiling() or t.is_inference() or is_functorch_wrapped_tensor(t):
        return -1
    return t._version


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


class Budget:
    """The memory budget of plans for several patterns.

    A program that combines matrices at random, such as batches of graphs, makes a plan per combination. The
    least recently used are dropped. A training step that cycles through more plans than fit would recompute
    all of them in every step, since each is dropped just before its next use. A warning says so.
    """

    always = 16  # the last plans are kept, whatever their size: a training step cycles through a few
    known = 2**12  # names of dropped plans that are remembered: about 1 MB

    def __init__(self, limit: int):
        self.limit, self.counted, self.warned = limit, 0, False
        self.entries: OrderedDict[weakref.ref[Entry], int] = OrderedDict()  # bytes, least recently used first
        self.grown: set[weakref.ref[Entry]] = set()  # plans that have grown since they were counted
        self.drops = Counter[str]()  # how often a plan of this name was dropped
        self.lock = threading.RLock()  # the backward of a CUDA tensor runs in a separate thread

    @property
    def total(self) -> int:
        """Bytes of all plans."""
        with self.lock:
            for ref in list(self.grown):
                entry = ref()
                if entry is not None and ref in self.entries:
                    size, before = entry.bytes(), self.entries[ref]
                    # In one line, without a call between: an interrupt (Ctrl-C) may come with every call.
                    self.counted, self.entries[ref] = self.counted + size - before, size
                self.grown.discard(ref)
            return self.counted

    def set_limit(self, limit: int) -> int:
        """Set the limit and return the previous one."""
        with self.lock:
            before, self.limit, self.warned = self.limit, limit, False
            self.drops.clear()
            self._drop_beyond_limit()
        return before

    def add(self, entry: Entry) -> None:
        """Add a new plan, used now."""
        with self.lock:
            self.entries[weakref.ref(entry, self._forget)] = 0
            self.grow(entry.ref, entry.value)
            self._drop_beyond_limit()
            repeated = not self.warned and self.drops[entry.name] >= 2
            self.warned = self.warned or repeated
        if repeated:
            warnings.warn(
                f"set_options: the plans in use take more than the limit of {self.limit} bytes, so they are "
                "dropped and made again and again, which takes time. Raise it with "
                "learnsolve.set_options(plan_cache_bytes=...)",
                stacklevel=2,
            )

    def touch(self, entry: Entry) -> None:
        """Mark the plan as used now."""
        with self.lock:
            if entry.ref in self.entries:
                self.entries.move_to_end(entry.ref)

    def grow(self, ref: weakref.ref[Entry], value: object) -> None:
        """`value` is now a part of the plan, which includes the memory that its patterns cache. It is counted
        when the next plan is added, because many things are computed for its patterns at once."""
        for part in _parts(value):
            if isinstance(part, CacheOwner) and (part._container is None or part._container() is None):
                object.__setattr__(part, "_container", ref)
        with self.lock:
            if ref in self.entries:
                self.grown.add(ref)

    def counts(self, entry: Entry) -> bool:
        return entry.ref in self.entries

    def pin(self, entry: Entry) -> None:
        """Keep the plan while its patterns live."""
        self._forget(entry.ref)

    def _forget(self, ref: weakref.ref[Entry]) -> None:
        with self.lock:
            if ref in self.entries:
                self.counted, self.entries[ref] = self.counted - self.entries[ref], 0  # as in `total`
                del self.entries[ref]

    def _drop_beyond_limit(self) -> None:
        while self.total > self.limit and len(self.entries) > self.always:
            ref = next(iter(self.entries))
            entry = ref()
            self._forget(ref)
            if entry is not None:
                if len(self.drops) >= self.known:
                    self.drops.clear()
                self.drops[entry.name] += 1
                entry.drop()


budget = Budget(2**26)
_serials = itertools.count()
_by_serial: weakref.WeakValueDictionary[str, CacheOwner] = weakref.WeakValueDictionary()

# The current stream of a device as a number. A Stream object takes as long to make as a kernel to launch.
_raw_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)


class Entry(Versions):
    """A cached value, and the versions of the tensors in it. It is dropped with the first of its owner and
    `others` that dies.

    When memory of a CUDA device is freed, the allocator makes it available to the stream it was allocated on.
    Other streams that read it must be recorded, once each.
    """

    __slots__ = ("__weakref__", "drop", "index", "name", "others", "ref", "streams", "value")

    def __init__(self, value: object, owner: CacheOwner, key: str, others: tuple = ()):
        super().__init__(_tensors(value))
        self.value, self.name = value, f"{owner._serial} {key}"
        self.ref, self.drop = weakref.ref(self), partial(_drop, weakref.ref(owner), key)
        self.others = [
            weakref.ref(o, self.drop) for o in others if isinstance(o, CacheOwner) and o is not owner
        ]
        on_device = owner._arrays[0].is_cuda
        self.index, self.streams = owner._arrays[0].device.index, set[int]() if on_device else None
        self.check()

    def check(self) -> None:
        for t, number in self.numbers:
            if t._version != number:
                raise change_error()
        if self.streams is not None:
            self.record(self.streams)

    def record(self, streams: set[int]) -> None:
        number = _raw_stream(self.index)
        if number not in streams:
            stream = torch.cuda.current_stream(self.index)
            for t, _ in self.numbers:
                if t.is_cuda:
                    t.record_stream(stream)
            streams.add(number)

    def bytes(self) -> int:
        return sum(_sizes(self.value, separate=False).values())


def _drop(owner_ref: weakref.ref[CacheOwner], key: str, _: object = None) -> None:
    if (owner := owner_ref()) is not None:
        vars(owner._in_graphs).pop(key, None)
        owner._entries.pop(key, None)


class _InGraphs:
    """Data that compiled code reads: attributes, because Dynamo sees attributes that are set after it has
    read others, but assumes that a dictionary stays the same after the first read."""

    __slots__ = ("__dict__",)


class CacheOwner:
    __slots__ = ("__weakref__", "_arrays", "_container", "_entries", "_in_graphs", "_own", "_serial")

    _arrays: tuple[Tensor, ...]

    def _begin(self, *arrays: Tensor) -> None:
        """Set the arrays of this object. Nothing is cached yet."""
        set_ = object.__setattr__
        set_(self, "_arrays", arrays)
        set_(self, "_serial", f"p{next(_serials)}")  # names this object in the keys of others
        set_(self, "_own", Entry(arrays, self, ""))
        set_(self, "_entries", {})
        set_(self, "_in_graphs", _InGraphs())
        _by_serial[self._serial] = self
        set_(self, "_container", None)  # refers to the plan that includes this object and its entries

    def _check_current(self) -> None:
        """Raise if the arrays differ from the validated ones, before an analysis or a kernel uses them."""
        self._own.check()

    def _is_current(self) -> bool:
        """Whether neither the arrays nor data computed from them was changed in place."""
        return all(entry.is_current() for entry in (self._own, *self._entries.values()))

    def _compute_once(self, key: str, make: Callable[..., T], *arguments: object) -> T:
        """`make(*arguments)`, computed once per key."""
        if torch.compiler.is_dynamo_compiling():
            _analyze_while_tracing(self._serial)
            return getattr(self._in_graphs, key)
        # `check`, inlined twice: every operation comes here, mostly several times.
        for t, number in self._own.numbers:
            if t._version != number:
                raise change_error()
        entry = self._entries.get(key)
        if entry is not None:
            for t, number in entry.numbers:
                if t._version != number:
                    raise change_error()
            if entry.streams is not None:
                entry.record(entry.streams)
            return entry.value
        value = self._make(make, *arguments)
        self._entries[key] = Entry(value, self, key)
        if self._container is not None:
            budget.grow(self._container, value)
        return value

    def _analyze(self) -> None:
        """Compute everything for `_compute_once` that an operation may need, and `_show` it."""
        raise NotImplementedError

    def _show(self) -> None:
        """Let compiled code read everything that is cached."""
        vars(self._in_graphs).update({key: entry.value for key, entry in list(self._entries.items())})

    def _make(self, make: Callable[..., T], *arguments: object) -> T:
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

    def _plan_once(self, make: Callable[..., T], *others: object) -> T:
        """`make(self, *others)`, computed once: the plan of an operation for this object together with other
        objects or integers. The plan is freed with the first of the objects, so it must not hold any of
        `others`, or earlier, if many others were used since (`Budget`), and is then recomputed. It consists
        of tensors and patterns in tuples, so that they can be watched and counted."""
        key = _key(make, others)
        if torch.compiler.is_dynamo_compiling():
            names = [o._serial if isinstance(o, CacheOwner) else o for o in others]
            _plan_while_tracing(self._serial, make, *names)
            return getattr(self._in_graphs, key)
        self._check_current()
        for other in others:
            if isinstance(other, CacheOwner):
                other._check_current()
        entry = self._entries.get(key)
        if entry is not None:
            entry.check()
            if self._arrays[0].is_cuda and torch.cuda.is_current_stream_capturing():
                budget.pin(entry)  # the graph reads it whenever it is replayed
            else:
                budget.touch(entry)
            return entry.value
        return self._keep(key, self._make(make, self, *others), others)

    def _has_plan(self, make: Callable[..., object], *others: object) -> bool:
        return _key(make, others) in self._entries

    def _keep_plan(self, plan: object, make: Callable[..., object], *others: object) -> None:
        """Store `plan`, which was obtained otherwise, as the plan that `make` would compute."""
        self._keep(_key(make, others), plan, others)

    def _keep(self, key: str, plan: T, others: tuple = (), *, may_be_dropped: bool = False) -> T:
        entry = Entry(plan, self, key, others)
        if may_be_dropped or not all(other is None or isinstance(other, (bool, str)) for other in others):
            budget.add(entry)
        elif self._container is not None:
            budget.grow(self._container, plan)  # there are only a few of this kind
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

    def _keep_last(self, key: str, value: object) -> None:
        """Store a value that depends on more than patterns, replacing the last one. The reader must check
        whether it matches. It may be dropped, like a plan."""
        self._keep(key, value, may_be_dropped=True)

    def cache_bytes(self) -> int:
        """Bytes held beyond the index arrays."""
        sizes = _sizes(tuple(entry.value for entry in list(self._entries.values())), seen={id(self)})
        for own in self._arrays:
            sizes.pop(own.data_ptr(), None)
        return sum(sizes.values())

    def drop_caches(self) -> None:
        """Free all cached data, which is recomputed when needed, and all memory kept of freed results
        (`set_options`)."""
        drop_buffers()
        vars(self._in_graphs).clear()
        self._entries.clear()


S = TypeVar("S", bound=CacheOwner)


def kept(make: Callable[[S], T]) -> T:
    """A property of a pattern that is computed once."""
    key = make.__name__

    @wraps(make)
    def read(self: S) -> T:
        return self._compute_once(key, make, self)

    return cast("T", property(read))  # the type of what is read


def _key(make: Callable[..., object], others: tuple) -> str:
    key = f"{make.__module__} {make.__name__}".replace(".", " ")  # Dynamo does not accept dots in attributes
    for other in others:
        key += f" {other._serial}" if isinstance(other, CacheOwner) else f" {other}"
    return key


def change_error() -> RuntimeError:
    return RuntimeError(
        "SparsityPattern: its index arrays were changed in place after it was made, or arrays that were "
        "computed from them. Make a new pattern from a copy of the arrays."
    )


def _parts(value: object) -> Iterator[Tensor | CacheOwner]:
    """The tensors and patterns in nested tuples."""
    if isinstance(value, tuple):
        for part in value:
            yield from _parts(part)
    elif isinstance(value, (Tensor, CacheOwner)):
        yield value


def _tensors(value: object) -> Iterator[Tensor]:
    for part in _parts(value):
        yield from part._arrays if isinstance(part, CacheOwner) else (part,)


def _sizes(value: object, seen: set[int] | None = None, separate: bool = True) -> dict[int, int]:
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


@constant_in_graphs
def _analyze_while_tracing(serial: str) -> bool:
    """Compute everything that an operation may need of a pattern, for real, while torch.compile traces, since
    it cannot trace the analysis. The argument is a string, as torch before 2.12 accepts no other object."""
    _by_serial[serial]._analyze()
    return True


@constant_in_graphs
def _plan_while_tracing(serial: str, make: Callable[..., object], *names: Any) -> bool:
    """Compute a plan for real while torch.compile traces, so that compiled code can read it at any time."""
    owner, others = _by_serial[serial], tuple(_by_serial.get(name, name) for name in names)
    plan, key = owner._plan_once(make, *others), _key(make, others)
    budget.pin(owner._entries[key])
    setattr(owner._in_graphs, key, plan)
    return True
