"""What the results of an operation depend on: one rule for each kind of operation.

A rule is called after the operation, with its arguments and results, and returns the index sets of each
result (`_trace.py`; None: all empty). An operation without a rule is dense: each element of its results
depends on all that its operands depend on, and a warning names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from learnsolve.nonlinear._trace import Rows, Tracer, count_of, stacked

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


def tensors(values: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(values) if isinstance(t, Tensor)]


def differentiable(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def unknown(c: Call) -> Sets:
    c.tracer.note("dense", c.func)
    return all_of(c.tracer, c.operands, c.results)


def all_of(T: Tracer, values: Any, results: list[Tensor]) -> list[Rows | None]:
    sets = [T.rows(t) for t in tensors(values)]
    every = T.union([None if r is None else one_set(T, r) for r in sets])
    return [None if every is None else T.take(every, np.zeros(t.numel(), int)) for t in results]


def one_set(T: Tracer, rows: Rows) -> Rows:
    count = count_of(rows)
    return T.product(np.zeros(count, int), np.arange(count), 1, rows)


@rule(
    "clone _to_copy to add sub mul div neg convert_element_type lift_fresh lift alias contiguous dropout "
    "nan_to_num native_dropout_backward complex polar"
)
def pointwise(c: Call) -> Sets:
    return [c.tracer.union([c.tracer.rows(t, out.shape) for t in c.operands]) for out in c.results]


@rule("copy fill")
def overwritten(c: Call) -> Sets:
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
def moved(c: Call) -> Sets:
    """The operation itself moves the numbers of the sets, counted from one; zeros come in between."""
    if c.named.get("reduce") is not None:
        return unknown(c) if c.name != "scatter" else added(c)
    if any(c.tracer.depends(t) and not differentiable(t) for t in tensors(c.values)):
        return moved_by_values(c)
    stack: list[Rows] = []
    first = 1

    def number(t: Any) -> Any:
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
    rows = stacked([c.tracer.empty(1), *stack])
    return [c.tracer.take(rows, ids.reshape(-1).long().cpu().numpy()) for ids in out]


def call(func: Any, values: list) -> Any:
    """`func` with one value for each argument of its schema."""
    arguments = func._schema.arguments
    by_name = {a.name: v for a, v in zip(arguments, values, strict=True) if a.kwarg_only}
    return func(*(v for a, v in zip(arguments, values, strict=True) if not a.kwarg_only), **by_name)


def moved_by_values(c: Call) -> Sets:
    """Values of u or args decide what goes where. A gather, by which torch differentiates sort and max,
    takes from its line, whatever they decide."""
    if c.name == "gather":
        source, dim, index = c.named["self"], c.named["dim"], c.named["index"]
        if source.dim() == 0:
            return [c.tracer.rows(source)]
        part = tuple(slice(n) for n in index.shape)
        return [lines(c.tracer, source, [dim], lambda ids: ids[part].expand(index.shape))]
    c.tracer.note("values", c.func)
    return all_of(c.tracer, c.values, c.results)


@rule("where masked_fill")
def chosen(c: Call) -> Sets:
    mask = c.named["condition"] if "condition" in c.named else c.named["mask"]
    constant = not c.tracer.depends(mask)
    return (moved if constant else pointwise)(c)


@rule("index_add scatter_add scatter_reduce index_put _index_put_impl embedding_dense_backward put")
def added(c: Call) -> Sets:
    """Elements that are added to others at constant places, or overwrite them."""
    out = c.results[0]
    indices = tensors([v for k, v in c.named.items() if k.startswith("ind")])
    if any(c.tracer.depends(i) for i in indices):
        c.tracer.note("values", c.func)
        return all_of(c.tracer, c.values, c.results)
    name, ids = c.name, torch.arange(out.numel(), device=out.device).reshape(out.shape)
    if name in ("index_put", "_index_put_impl", "put") and not c.named["accumulate"]:
        return moved(c)
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
    return [c.tracer.union([before, placed(c.tracer, source, places, out)])]


def placed(T: Tracer, source: Tensor, places: Tensor, out: Tensor) -> Rows | None:
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


def blocks(T: Tracer, inputs: Sequence[Tensor], out: Tensor, dims: Any) -> Rows | None:
    """Dense along `dims`, with a block for each place along the other axes, broadcast."""
    return T.union([lines(T, t, dims, lambda ids: ids.expand(out.shape)) for t in inputs])


@rule("sum mean nansum amax amin linalg_vector_norm logsumexp trace")
def reduced(c: Call) -> Sets:
    """Each line along the axes to one element."""
    return [lines(c.tracer, c.named["self"], c.named.get("dim"))]


@rule(
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data cumprod logcumsumexp "
    "linalg_cross _fft_r2c _fft_c2r _fft_c2c"
)
def along(c: Call) -> Sets:
    """Each element of a line, or of a block of several axes, depends on all of it."""
    return [blocks(c.tracer, c.operands, c.results[0], c.named["dim"])]


def solved(T: Tracer, inputs: Sequence[Tensor], x: Tensor, dims: Sequence[int]) -> Rows | None:
    """x of a solver: dense along `dims`, system by system where an input has x's other axes."""

    def axes(t: Tensor) -> list[int]:
        return [n for d, n in enumerate(t.shape, -t.dim()) if d not in dims]

    alike = [t for t in inputs if t.dim() == x.dim() and axes(t) == axes(x)]
    others = [t for t in inputs if not any(t is other for other in alike)]
    return T.union([blocks(T, alike, x, dims), *all_of(T, others, [x])])


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
