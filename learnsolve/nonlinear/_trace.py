"""The pattern of a Jacobian from the program of f: index sets that follow its tangents.

f's derivative along a tangent is computed once, with torch's own forward mode. Each element of the tangent
starts as the set that holds its own index, and a rule for each operation says which elements of its results
depend on which of its operands. Sets belong to elements of *storages*, so that views, and writes through
them, need no rule. Values computed from u or args without a derivative are marked as well: they must not
decide the dependencies, since the pattern holds for all u.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode_temporarily

from learnsolve.matrix.cache import innermost

Rows = scipy.sparse.csr_array
"""The index sets of elements, a boolean matrix: row k has the inputs that element k depends on."""

MOST_ENTRIES = 2**28
_FREE = ("_has_same_storage_numel", "is_same_size", "sym_size", "sym_stride")  # read sizes only
_SHAPES = ("zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty")
_SHAPES += ("new_full", "_new_zeros_with_same_feature_meta", "new_empty_strided")


def users_line() -> str:
    """ " at FILE:LINE" of the first caller outside of learnsolve and torch, "" if there is none."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").split(".")[0] in ("learnsolve", "torch"):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f" at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


class Watch(TorchDispatchMode):
    """Rejects programs that are not functions of u: random numbers, and writes into u."""

    only_reverse = ""  # what torch's forward mode gets wrong, without a word

    def __init__(self, function: str, u: Tensor):
        super().__init__()
        self.function = function
        self.own = u.untyped_storage()._cdata

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.check(func, args, kwargs or {})
        return self.call(func, args, kwargs or {})

    @staticmethod
    def call(func: Any, args: tuple, kwargs: dict) -> Any:
        if func._overloadname == "Scalar" and isinstance(args[0], Tensor) and args[0]._is_zerotensor():
            t = args[0]  # within a dispatch mode torch 2.13 crashes
            args = (torch.zeros(t.shape, dtype=t.dtype, device=t.device), *args[1:])
        return func(*args, **kwargs)

    def check(self, func: Any, args: tuple, kwargs: dict) -> list[Tensor]:
        """The tensors that `func` writes into."""
        arguments = func._schema.arguments
        if torch.Tag.nondeterministic_seeded in func.tags and not _without_dropout(arguments, args, kwargs):
            raise ValueError(
                f"{self.function}: f must return the same values at each call, but uses random numbers "
                f"({func}{users_line()}). Draw them before, and pass them as an argument"
            )
        if func._schema.name.startswith("aten::scatter_reduce") and args[4:] == ("prod",):
            self.only_reverse = (
                f'{self.function}: torch\'s forward mode takes the derivative of scatter_reduce(..., "prod")'
                f'{users_line()} for zero. Use mode="reverse", or multiply without scatter_reduce'
            )
        if not func._schema.is_mutable:
            return []
        written = [a for s, a in zip(arguments, args, strict=False) if s.is_write]
        written += [kwargs[s.name] for s in arguments if s.is_write and s.name in kwargs]
        written = [t for t in pytree.tree_leaves(written) if isinstance(t, Tensor)]
        if any(t.untyped_storage()._cdata == self.own for t in written if not t._is_zerotensor()):
            raise ValueError(
                f"{self.function}: f must not change u, but writes into it ({func}{users_line()}). Begin f "
                "with u = u.clone(), or write x = x + y instead of x += y"
            )
        return written


def _without_dropout(arguments: Any, args: tuple, kwargs: dict) -> bool:
    """Attention has random numbers only for its dropout."""
    given = {a.name: a.default_value for a in arguments}
    given |= {a.name: v for a, v in zip(arguments, args, strict=False)} | kwargs
    return given.get("dropout_p") == 0


class _Storage:
    """The sets of the real numbers in a storage that depends on u or args, None if all are empty."""

    __slots__ = ("itemsize", "ref", "rows", "size")

    def __init__(self, t: Tensor):
        storage = t.untyped_storage()
        self.ref = StorageWeakRef(storage)  # while it lives, no other storage has this address
        self.itemsize = _itemsize(t)
        self.size = storage.nbytes() // self.itemsize
        self.rows: Rows | None = None


class Tracer(Watch):
    """A dispatch mode that carries the sets, of inputs 0 .. width - 1."""

    def __init__(self, function: str, u: Tensor, rules: Any, width: int):
        super().__init__(function, u)
        self.rules, self.width = rules, width
        self.storages: dict[int, _Storage] = {}
        self.purge_at = 32  # storages of freed tensors are forgotten
        self.notes: dict[tuple[str, str], None] = {}
        self.choosing = False  # values that are read decide how a system is solved

    # --- sets of tensors ---
    def depends(self, t: object) -> bool:
        """Whether t depends on u or args, with or without a derivative."""
        return self._storage(t) is not None

    def has_rows(self, t: object) -> bool:
        storage = self._storage(t)
        return storage is not None and storage.rows is not None

    def rows(self, t: Tensor, shape: Sequence[int] | None = None) -> Rows | None:
        """The sets of t's elements in logical order, broadcast to `shape`."""
        storage = self._storage(t)
        if storage is None or storage.rows is None:
            return None
        t = t if shape is None else t.expand(tuple(shape))
        if self._is_all(t, storage) and not t.is_complex():
            return storage.rows
        if _itemsize(t) != storage.itemsize:  # a view in another dtype
            everything = self.product(np.zeros(storage.size, int), np.arange(storage.size), 1, storage.rows)
            return self.take(everything, np.zeros(t.numel(), int))
        rows = self.take(storage.rows, _positions(t, storage.size))
        if t.is_complex():
            pairs = np.arange(2 * t.numel())
            rows = self.product(pairs // 2, pairs, t.numel(), rows)
        return rows

    def write(self, t: Tensor, rows: Rows | None) -> None:
        """Set t's sets. The sets of other elements of its storage are kept."""
        if t._is_zerotensor():
            return
        storage = self._storage(t)
        if storage is None:
            if len(self.storages) > self.purge_at:
                self.storages = {k: s for k, s in self.storages.items() if not s.ref.expired()}
                self.purge_at = 2 * len(self.storages) + 32
            storage = self.storages[t.untyped_storage()._cdata] = _Storage(t)
        if rows is None and storage.rows is None:
            return
        count = t.numel() * (2 if t.is_complex() else 1)
        if rows is not None and t.is_complex():
            rows = self.take(rows, np.arange(count) // 2)
        if rows is None or not self._is_all(t, storage):
            new = self.empty(count) if rows is None else rows
            old = self.empty(storage.size) if storage.rows is None else storage.rows
            both, source = stack_rows([old, new]), np.arange(storage.size)
            if _itemsize(t) == storage.itemsize:
                source[_positions(t, storage.size)] = storage.size + np.arange(count)
            else:  # bytes of other numbers
                both = self.product(0 * np.arange(count_rows(both)), np.arange(count_rows(both)), 1, both)
                source = 0 * source
            rows = self.take(both, source)
        storage.rows = rows

    def _storage(self, t: object) -> _Storage | None:
        if not isinstance(t, Tensor) or t.layout is not torch.strided or t._is_zerotensor():
            return None
        memory = t.untyped_storage()
        storage = self.storages.get(memory._cdata)
        if storage is not None and (more := memory.nbytes() // storage.itemsize - storage.size) > 0:
            storage.size += more  # after resize_
            storage.rows = None if storage.rows is None else stack_rows([storage.rows, self.empty(more)])
        return storage

    @staticmethod
    def _is_all(t: Tensor, storage: _Storage) -> bool:
        count = t.numel() * (2 if t.is_complex() else 1)
        return t.is_contiguous() and count == storage.size and _itemsize(t) == storage.itemsize

    # --- algebra of sets ---
    def empty(self, count: int) -> Rows:
        return Rows((count, self.width), dtype=bool)

    def union(self, parts: Sequence[Rows | None]) -> Rows | None:
        total = None
        for rows in parts:
            if rows is not None and rows is not total:
                total = rows if total is None else total + rows
        return total

    def take(self, rows: Rows, index: np.ndarray) -> Rows:
        """Row index[k] for each k, where len(rows) stands for an empty row."""
        lengths = np.append(np.diff(rows.indptr), 0)  # including the empty row
        self.check_size(int(lengths[index].sum(dtype=np.int64)))
        parts = (rows.data, rows.indices, np.append(rows.indptr, rows.indptr[-1:]))
        return Rows(parts, shape=(len(parts[2]) - 1, self.width))[index]

    def product(self, out: np.ndarray, source: np.ndarray, count: int, rows: Rows) -> Rows:
        """`count` sets: set out[k] includes row source[k], for each k."""
        ones = np.ones(len(out), dtype=bool)
        M = scipy.sparse.coo_array((ones, (out, source)), shape=(count, count_rows(rows))).tocsr()
        bound = int(np.diff(rows.indptr)[source].sum(dtype=np.int64))
        if bound > MOST_ENTRIES:
            self.check_size(min(bound, count * self.width))
        result = Rows(M @ rows)
        result.sort_indices()
        return result

    def check_size(self, entries: int) -> None:
        if entries > MOST_ENTRIES:
            raise ValueError(
                f"{self.function}: a result{users_line()} depends on u in {entries} entries, so the Jacobian "
                "is not sparse there. Use products torch.func.jvp(f, (u,), (v,)) instead, or pass pattern="
            )

    # --- running a program ---
    def note(self, kind: str, func: object) -> None:
        if not (self.choosing and kind == "values"):
            self.notes.setdefault((kind, f"{func}{users_line()}"), None)

    def run_as_operation(self, run: Callable[[], Any], inputs: Sequence[Tensor], dims: Sequence[int]) -> Any:
        """The results of `run`, a solver: of its iterations, and the values that end them, nothing is
        noted."""
        with _pop_mode_temporarily():
            x, *others = out = run()
            rows = self.rules.trace_solve(self, inputs, x, dims)
        if any(self.depends(t) for t in inputs):
            self.write(x, rows)
            for t in others:
                if isinstance(t, Tensor):
                    self.write(t, None)
        return out

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        written = self.check(func, args, kwargs)
        out = self.call(func, args, kwargs)
        name = func._schema.name.rpartition("::")[2]
        inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        for t in inputs:
            if t.requires_grad and not self.depends(t) and t.layout is torch.strided:
                self.write(t, None)  # a parameter, which training changes
        if name in _FREE or name in _SHAPES or not any(self.depends(t) for t in inputs):
            return out
        if torch.Tag.inplace_view in func.tags:  # such as t_: sets belong to the storage
            return out
        by_values = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
        if any(tag in func.tags for tag in by_values) and (
            name != "index" or any(self.depends(t) and t.dtype in (torch.bool, torch.uint8) for t in inputs)
        ):
            self.note("values", func)
        results = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
        if not results and written:
            results = written
        inputs = [t for t in inputs if t.layout is torch.strided]
        own = {t.untyped_storage()._cdata for t in inputs if not t._is_zerotensor()}
        targets = {id(t) for t in written}
        fresh = [
            t
            for t in results
            if not t._is_zerotensor() and (id(t) in targets or t.untyped_storage()._cdata not in own)
        ]
        if not fresh:
            return out  # views
        if not any(self.has_rows(t) for t in inputs):
            for t in fresh:
                self.write(t, None)
            return out
        for t, rows in zip(results, self.rules.apply(self, func, args, kwargs, results), strict=True):
            if any(t is other for other in fresh):
                self.write(t, rows if t.is_floating_point() or t.is_complex() else None)
        return out


class Lists(TorchFunctionMode):
    """Notices `Tensor.tolist`, which reads values without calling the dispatcher."""

    def __init__(self, tracer: Tracer):
        super().__init__()
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is Tensor.tolist and self.tracer.depends(innermost(args[0])):
            self.tracer.note("values", "Tensor.tolist")
        return func(*args, **(kwargs or {}))


def _itemsize(t: Tensor) -> int:
    """Of a real number: a complex one is two."""
    return t.element_size() // (2 if t.is_complex() else 1)


def _positions(t: Tensor, size: int) -> np.ndarray:
    """The positions in its storage of the real numbers that the elements of t consist of."""
    shape, stride, offset = t.shape, t.stride(), t.storage_offset()
    if t.is_complex():
        shape, stride, offset = (*shape, 2), (*(2 * s for s in stride), 1), 2 * offset
    return torch.arange(size).as_strided(shape, stride, offset).reshape(-1).numpy()


def count_rows(rows: Rows) -> int:
    return len(rows.indptr) - 1


def stack_rows(parts: Sequence[Rows]) -> Rows:
    return Rows(scipy.sparse.vstack(parts, format="csr"))


# What the results of an operation depend on: one rule for each kind of operation.
#
# A rule is called after the operation, with its arguments and results, and returns the index sets of each
# result (None: all empty). An operation without a rule is dense: each element of its results
# depends on all that its operands depend on, and a warning names it.


Sets = list[Rows | None]
"""Of each result."""


class Call(NamedTuple):
    """An operation that was called."""

    tracer: Tracer
    func: Any
    values: list
    """One for each argument of its schema."""
    named: dict[str, Any]
    """The same by name."""
    results: list[Tensor]

    @property
    def name(self) -> str:
        """Without namespace, and without the underscore of an operation in place."""
        return self.func._schema.name.rpartition("::")[2].removesuffix("_")

    @property
    def operands(self) -> list[Tensor]:
        """All tensors, but not that of `out=`."""
        arguments = zip(self.func._schema.arguments, self.values, strict=True)
        return tensors([v for a, v in arguments if not a.is_out])


Rule = Callable[[Call], Sets]
RULES: dict[str, Rule] = {}


def rule(names: str) -> Callable[[Rule], Rule]:
    """For the operations of these names, also in place and with results that are copies of views."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return register


def apply(tracer: Tracer, func: Any, args: tuple, kwargs: dict, results: list[Tensor]) -> Sets:
    """The sets of all results."""
    arguments = func._schema.arguments
    given = {**{a.name: v for a, v in zip(arguments, args, strict=False)}, **kwargs}
    named = {a.name: given.get(a.name, a.default_value) for a in arguments}
    c = Call(tracer, func, list(named.values()), named, results)
    function = RULES.get(c.name) or RULES.get(c.name.removesuffix("_copy"))
    if function is None and (
        torch.Tag.pointwise in func.tags or (func.namespace == "prims" and c.name in _PRIMS)
    ):
        function = pointwise
    return (function or unknown)(c)


_PRIMS = ("add", "sub", "mul", "div", "neg", "where", "convert_element_type", "view_of")


def tensors(values: object) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(values) if isinstance(t, Tensor)]


def differentiable(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def unknown(c: Call) -> Sets:
    c.tracer.note("dense", c.func)
    return couple_all(c.tracer, c.operands, c.results)


def couple_all(T: Tracer, values: object, results: list[Tensor]) -> list[Rows | None]:
    sets = [T.rows(t) for t in tensors(values)]
    every = T.union([None if r is None else one_set(T, r) for r in sets])
    return [None if every is None else T.take(every, np.zeros(t.numel(), int)) for t in results]


def one_set(T: Tracer, rows: Rows) -> Rows:
    count = count_rows(rows)
    return T.product(np.zeros(count, int), np.arange(count), 1, rows)


@rule(
    "clone _to_copy to add sub mul div neg convert_element_type lift_fresh lift alias contiguous dropout "
    "nan_to_num native_dropout_backward complex polar"
)
def pointwise(c: Call) -> Sets:
    return [c.tracer.union([c.tracer.rows(t, out.shape) for t in c.operands]) for out in c.results]


@rule("copy fill")
def trace_overwrite(c: Call) -> Sets:
    return [c.tracer.rows(c.values[1], c.results[0].shape) if isinstance(c.values[1], Tensor) else None]


@rule("zero")
def empty(c: Call) -> Sets:
    return [None] * len(c.results)


@rule(
    "cat stack block_diag roll flip rot90 repeat tile tril triu constant_pad_nd reflection_pad1d "
    "reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d index "
    "index_select index_fill index_copy gather scatter take embedding masked_select masked_scatter "
    "masked_scatter_backward im2col slice_scatter select_scatter diagonal_scatter as_strided_scatter "
    "slice_backward select_backward diagonal_backward diag_embed repeat_interleave pixel_shuffle "
    "pixel_unshuffle channel_shuffle upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d as_strided expand "
    "permute transpose view slice select squeeze unsqueeze t split unbind diagonal narrow unfold"
)
def trace_move(c: Call) -> Sets:
    """The operation itself moves the numbers of the sets, counted from one, with zeros in between."""
    if c.named.get("reduce") is not None:
        return unknown(c) if c.name != "scatter" else trace_addition(c)
    if any(c.tracer.depends(t) and not differentiable(t) for t in tensors(c.values)):
        return trace_value_move(c)
    stack: list[Rows] = []
    first = 1

    def number(t: object) -> Any:
        nonlocal first
        if not isinstance(t, Tensor) or not differentiable(t):
            return t
        layout = None
        if "as_strided" in c.name:  # which reads the storage
            layout = t.shape, t.stride(), t.storage_offset()
            t = t.as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)
        ids = torch.zeros(t.numel(), dtype=torch.float64, device=t.device)
        if (rows := c.tracer.rows(t)) is not None:
            stack.append(rows)
            ids += torch.arange(first, first + len(ids), device=t.device)
            first += len(ids)
        return ids.as_strided(*layout) if layout else ids.reshape(t.shape)

    numbered = []
    for argument, value in zip(c.func._schema.arguments, c.values, strict=True):
        scalar = isinstance(argument.type, torch.NumberType) and value is not None
        numbered.append(0 if scalar else pytree.tree_map(number, value))
    out = tensors(call(c.func, numbered))
    rows = stack_rows([c.tracer.empty(1), *stack])
    return [c.tracer.take(rows, ids.reshape(-1).long().cpu().numpy()) for ids in out]


def call(func: Any, values: list) -> Any:
    """`func` with one value for each argument of its schema."""
    arguments = func._schema.arguments
    by_name = {a.name: v for a, v in zip(arguments, values, strict=True) if a.kwarg_only}
    return func(*(v for a, v in zip(arguments, values, strict=True) if not a.kwarg_only), **by_name)


def trace_value_move(c: Call) -> Sets:
    """Values of u or args decide what goes where. A gather, by which torch differentiates sort and max,
    takes from its line, whatever they decide."""
    if c.name == "gather":
        source, dim, index = c.named["self"], c.named["dim"], c.named["index"]
        if source.dim() == 0:
            return [c.tracer.rows(source)]
        part = tuple(slice(n) for n in index.shape)
        return [lines(c.tracer, source, [dim], lambda ids: ids[part].expand(index.shape))]
    c.tracer.note("values", c.func)
    return couple_all(c.tracer, c.values, c.results)


@rule("where masked_fill")
def chosen(c: Call) -> Sets:
    mask = c.named["condition"] if "condition" in c.named else c.named["mask"]
    constant = not c.tracer.depends(mask)
    return (trace_move if constant else pointwise)(c)


@rule("index_add scatter_add scatter_reduce index_put _index_put_impl embedding_dense_backward put")
def trace_addition(c: Call) -> Sets:
    """Elements that are added to others at constant places, or overwrite them."""
    out = c.results[0]
    indices = tensors([v for k, v in c.named.items() if k.startswith("ind")])
    if any(c.tracer.depends(i) for i in indices):
        c.tracer.note("values", c.func)
        return couple_all(c.tracer, c.values, c.results)
    name, ids = c.name, torch.arange(out.numel(), device=out.device).reshape(out.shape)
    if name in ("index_put", "_index_put_impl", "put") and not c.named["accumulate"]:
        return trace_move(c)
    if name == "embedding_dense_backward":
        source = c.named["grad_output"]
        places = ids[c.named["indices"]]
    else:
        source = next(c.named[name] for name in ("source", "src", "values") if name in c.named)
        if name == "index_add":
            places = ids.index_select(c.named["dim"], c.named["index"].reshape(-1)) if out.dim() else ids
        elif name.startswith("scatter"):
            places = ids.gather(c.named["dim"], c.named["index"])
            source = source[tuple(slice(n) for n in c.named["index"].shape)]
        elif name == "put":
            places = ids.take(c.named["index"])
        else:
            places = ids[tuple(slice(None) if i is None else i for i in c.named["indices"])]
    before = c.tracer.rows(c.named["self"], out.shape) if "self" in c.named else None
    return [c.tracer.union([before, scatter_rows(c.tracer, source, places, out)])]


def scatter_rows(T: Tracer, source: Tensor, places: Tensor, out: Tensor) -> Rows | None:
    """Each element of `source` is added to the element of `out` with the number in `places`, or to none."""
    rows, at = T.rows(source, places.shape), places.reshape(-1).cpu().numpy()
    if rows is None:
        return None
    (inside,) = (at >= 0).nonzero()
    return T.product(at[inside], inside, out.numel(), rows)


# --- along axes ---
def lines(
    T: Tracer, t: Tensor, dims: Any, places: Callable[[Tensor], Tensor] = lambda ids: ids
) -> Rows | None:
    """What all elements of t in each line (or block) along `dims` depend on. `places` gives the lines to the
    elements of a result: a function of their numbers, of t's shape with one element along `dims`."""
    rows = T.rows(t)
    if rows is None:
        return None
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        dims = range(t.dim())
    chosen = {d % t.dim() for d in ([dims] if isinstance(dims, int) else dims)} if t.dim() else set()
    left = torch.Size(1 if d in chosen else n for d, n in enumerate(t.shape))
    ids = torch.arange(left.numel()).reshape(left)
    groups = ids.expand(t.shape).reshape(-1).numpy()
    every = T.product(groups, np.arange(t.numel()), left.numel(), rows)
    return T.take(every, places(ids).reshape(-1).numpy())


def blocks(T: Tracer, inputs: Sequence[Tensor], out: Tensor, dims: object) -> Rows | None:
    """Dense along `dims`, with a block for each place along the other axes, broadcast."""
    return T.union([lines(T, t, dims, lambda ids: ids.expand(out.shape)) for t in inputs])


@rule("sum mean nansum amax amin linalg_vector_norm logsumexp trace")
def trace_reduction(c: Call) -> Sets:
    """Each line along the axes to one element."""
    return [lines(c.tracer, c.named["self"], c.named.get("dim"))]


@rule(
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data cumprod logcumsumexp "
    "linalg_cross _fft_r2c _fft_c2r _fft_c2c"
)
def along(c: Call) -> Sets:
    """Each element of a line, or of a block of several axes, depends on all of it."""
    return [blocks(c.tracer, c.operands, c.results[0], c.named["dim"])]


def trace_solve(T: Tracer, inputs: Sequence[Tensor], x: Tensor, dims: Sequence[int]) -> Rows | None:
    """x of a solver: dense along `dims`, system by system where an input has x's other axes."""

    def axes(t: Tensor) -> list[int]:
        return [n for d, n in enumerate(t.shape, -t.dim()) if d not in dims]

    alike = [t for t in inputs if t.dim() == x.dim() and axes(t) == axes(x)]
    others = [t for t in inputs if not any(t is other for other in alike)]
    return T.union([blocks(T, alike, x, dims), *couple_all(T, others, [x])])


@rule("cumsum")
def running(c: Call) -> Sets:
    """Each element depends on those before it in its line: lower triangles."""
    t = tensors(c.values)[0]
    rows = c.tracer.rows(t)
    if rows is None or t.dim() == 0 or t.numel() == 0:
        return [rows]
    length = t.shape[c.named["dim"]]
    c.tracer.check_size(t.numel() * (length + 1) // 2)
    ids = torch.arange(t.numel()).reshape(t.shape).movedim(c.named["dim"], -1).reshape(-1, length).numpy()
    later, earlier = np.tril_indices(length)
    return [c.tracer.product(ids[:, later].reshape(-1), ids[:, earlier].reshape(-1), t.numel(), rows)]
