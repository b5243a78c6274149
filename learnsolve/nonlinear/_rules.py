"""What the results of an operation depend on: one rule for each kind of operation.

A rule is called after the operation, with its arguments and results, and returns the index sets of each
result (`_trace.py`; None: all empty). An operation without a rule is dense: each element of its results
depends on all that its operands depend on, and a warning names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from learnsolve.nonlinear._trace import Rows, Tracer, stacked

Rule = Callable[[Tracer, Any, list, dict, list[Tensor]], "list[Rows | None]"]
RULES: dict[str, Rule] = {}


def rule(names: str) -> Callable[[Rule], Rule]:
    """For operations by their names, without the underscore of those in place."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return register


def apply(tracer: Tracer, func: Any, name: str, args: tuple, kwargs: dict, results: list[Tensor]) -> list:
    """The sets of all results."""
    names = [a.name for a in func._schema.arguments]
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    values = [arguments.get(a.name, a.default_value) for a in func._schema.arguments]
    found = RULES.get(name) or RULES.get(name.removesuffix("_").removesuffix("_copy"))
    if found is None and (torch.Tag.pointwise in func.tags or (func.namespace == "prims" and name in _PRIMS)):
        found = pointwise
    return (found or unknown)(tracer, func, values, dict(zip(names, values, strict=True)), results)


_PRIMS = ("add", "sub", "mul", "div", "neg", "where", "convert_element_type", "view_of")


def tensors(values: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(values) if isinstance(t, Tensor)]


def unknown(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    T.note("dense", func)
    return all_of(T, values, results)


def all_of(T: Tracer, values: Any, results: list[Tensor]) -> list[Rows | None]:
    sets = [T.rows(t) for t in tensors(values)]
    every = T.union([None if r is None else one_set(T, r) for r in sets])
    return [None if every is None else T.take(every, np.zeros(t.numel(), int)) for t in results]


def one_set(T: Tracer, rows: Rows) -> Rows:
    count = rows.shape[0]
    return T.product(np.zeros(count, int), np.arange(count), 1, rows)


@rule("clone _to_copy to lift_fresh lift alias contiguous dropout nan_to_num native_dropout_backward")
def pointwise(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    return [T.union([T.rows(t, out.shape) for t in tensors(values)]) for out in results]


@rule("copy fill")
def overwritten(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    return [T.rows(values[1], results[0].shape) if isinstance(values[1], Tensor) else None]


@rule("zero")
def empty(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    return [None] * len(results)


@rule(
    "cat stack roll flip constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d "
    "replication_pad2d replication_pad3d index_select index gather take embedding repeat tril triu im2col "
    "slice_scatter select_scatter diagonal_scatter as_strided_scatter slice_backward select_backward "
    "diagonal_backward index_fill index_copy masked_select masked_scatter pixel_shuffle pixel_unshuffle "
    "channel_shuffle diag_embed rot90 repeat_interleave unfold as_strided expand permute transpose view slice "
    "select squeeze unsqueeze t split unbind diagonal narrow upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d scatter tile masked_scatter_backward"
)
def moved(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    """The operation itself moves the numbers of the sets, counted from one; zeros come in between."""
    if named.get("reduce") is not None:
        return unknown(T, func, values, named, results)
    if any(T.depends(t) and not t.is_floating_point() for t in tensors(values)):
        return moved_by_values(T, func, values, named, results)
    stack: list[Rows] = []
    first = 1

    def number(t: Any) -> Any:
        nonlocal first
        if not isinstance(t, Tensor) or not t.is_floating_point():
            return t
        rows = T.rows(t)
        if rows is None:
            return torch.zeros(t.shape, dtype=torch.float64)
        stack.append(rows)
        ids = torch.arange(first, first + t.numel(), dtype=torch.float64).reshape(t.shape)
        first += t.numel()
        return ids

    numbered = []
    for argument, value in zip(func._schema.arguments, values, strict=True):
        scalar = isinstance(argument.type, torch.NumberType) and value is not None
        numbered.append(0 if scalar else pytree.tree_map(number, value))
    out = tensors(call(func, numbered))
    rows = stacked([T.empty(1), *stack])
    return [T.take(rows, ids.reshape(-1).long().numpy()) for ids in out]


def call(func: Any, values: list) -> Any:
    """`func` with one value for each argument of its schema."""
    arguments = func._schema.arguments
    by_name = {a.name: v for a, v in zip(arguments, values, strict=True) if a.kwarg_only}
    return func(*(v for a, v in zip(arguments, values, strict=True) if not a.kwarg_only), **by_name)


def moved_by_values(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list:
    """Values of u or args decide what goes where. A gather, by which torch differentiates sort and max,
    takes from its line, whatever they decide."""
    if func._schema.name == "aten::gather":
        source, dim, index = named["self"], named["dim"], named["index"]
        rows, out = T.rows(source), results[0]
        if rows is None or source.dim() == 0:
            return [rows]
        kept, groups = line_groups(source.shape, [dim])
        lines = torch.arange(kept.numel()).reshape(kept.shape)
        for d, size in enumerate(index.shape):
            lines = (
                lines.expand(out.shape[: d + 1] + lines.shape[d + 1 :])
                if d == dim % source.dim()
                else (lines.narrow(d, 0, size))
            )
        every = T.product(groups, np.arange(source.numel()), kept.numel(), rows)
        return [T.take(every, lines.reshape(-1).numpy())]
    T.note("values", func)
    return all_of(T, values, results)


@rule("where masked_fill")
def chosen(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    mask = named["condition"] if "condition" in named else named["mask"]
    constant = not T.depends(mask)
    return (moved if constant else pointwise)(T, func, values, named, results)


@rule("index_add scatter_add index_put _index_put_impl embedding_dense_backward put")
def added(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    """Elements that are added to others at constant places, or overwrite them."""
    out = results[0]
    indices = tensors([v for k, v in named.items() if k.startswith("ind")])
    if any(T.depends(i) for i in indices):
        T.note("values", func)
        return all_of(T, values, results)
    name = func._schema.name.rpartition("::")[2].rstrip("_")
    if name in ("index_put", "_index_put_impl", "put") and not named["accumulate"]:
        return moved(T, func, values, named, results)
    if name == "embedding_dense_backward":
        source = named["grad_output"]
        places = torch.arange(out.numel()).reshape(out.shape)[named["indices"]]
    else:
        ids = torch.arange(out.numel()).reshape(out.shape)
        source = named["source"] if "source" in named else named["src"] if "src" in named else named["values"]
        if name == "index_add":
            places = ids.index_select(named["dim"], named["index"].reshape(-1)) if out.dim() else ids
        elif name == "scatter_add":
            places = ids.gather(named["dim"], named["index"])
            source = source[tuple(slice(n) for n in named["index"].shape)]
        elif name == "put":
            places = ids.take(named["index"])
        else:
            places = torch.ops.aten.index(ids, named["indices"])
    rows = T.rows(source, places.shape)
    before = T.rows(named["self"], out.shape) if "self" in named else None
    if rows is None:
        return [before]
    placed = T.product(places.reshape(-1).numpy(), np.arange(places.numel()), out.numel(), rows)
    return [T.union([before, placed])]


# --- along axes ---
def line_groups(shape: Sequence[int], dims: Any) -> tuple[Tensor, np.ndarray]:
    """An empty tensor of the shape that is left when `dims` are reduced to size one, and to which of its
    elements each element of `shape` belongs."""
    count = len(shape)
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        dims = range(count)
    chosen = {d % count for d in ([dims] if isinstance(dims, int) else dims)} if count else set()
    left = torch.empty([1 if d in chosen else n for d, n in enumerate(shape)], device="meta")
    groups = torch.arange(left.numel()).reshape(left.shape).expand(tuple(shape))
    return left, groups.reshape(-1).numpy()


@rule(
    "sum mean nansum prod amax amin norm linalg_vector_norm logsumexp var std trace dist mse_loss max min "
    "_fused_sum sum_to_size"
)
def reduced(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    """Each line along the axes to one element."""
    source = tensors(values)[0]
    out = results[0]
    if len([t for t in tensors(values) if T.has_rows(t)]) > 1 or not isinstance(
        named.get("dim"), (int, list, type(None))
    ):
        return unknown(T, func, values, named, results)
    rows = T.rows(source)
    left, groups = line_groups(source.shape, None if func._schema.name == "aten::trace" else named.get("dim"))
    if rows is None or left.numel() != out.numel():
        return unknown(T, func, values, named, results)
    return [T.product(groups, np.arange(source.numel()), out.numel(), rows)] + [None] * (len(results) - 1)


@rule(
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data cumprod logcumsumexp cummax sort "
    "topk renorm"
)
def along(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    """Each element of a line depends on the whole line."""
    sets = []
    for t in tensors(values):
        rows = T.rows(t)
        if rows is None:
            continue
        left, groups = line_groups(t.shape, named["dim"])
        every = T.product(groups, np.arange(t.numel()), left.numel(), rows)
        if results[0].shape != t.shape:
            return unknown(T, func, values, named, results)
        sets.append(T.take(every, groups))
    return [T.union(sets)] + [None] * (len(results) - 1)


@rule("cumsum")
def running(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    """Each element depends on those before it in its line: lower triangles."""
    t = tensors(values)[0]
    rows = T.rows(t)
    if rows is None or t.dim() == 0 or t.numel() == 0:
        return [rows]
    length = t.shape[named["dim"]]
    T.check_size(t.numel() * (length + 1) // 2)
    ids = torch.arange(t.numel()).reshape(t.shape).movedim(named["dim"], -1).reshape(-1, length).numpy()
    later, earlier = np.tril_indices(length)
    return [T.product(ids[:, later].reshape(-1), ids[:, earlier].reshape(-1), t.numel(), rows)]


# --- products of matrices ---
@rule("mm bmm mv dot vdot addmm baddbmm addmv")
def product(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    """Zeros of a matrix that is a constant of the program, and is not trained, count."""
    name, out = func._schema.name.rpartition("::")[2].rstrip("_"), results[0]
    *before, a, b = tensors(values)
    if name in ("mv", "addmv", "dot", "vdot"):
        b = b.reshape(-1, 1) if not T.has_rows(b) else b.unsqueeze(-1)
    if name in ("dot", "vdot"):
        a = a.unsqueeze(0)
    a, b = (t if t.dim() == 3 else t.unsqueeze(0) for t in (a, b))
    size, m, inner = a.shape
    p = b.shape[-1]
    parts = [T.rows(t, out.shape) for t in before]
    for t, other, left in ((a, b, True), (b, a, False)):
        rows = T.rows(t)
        if rows is None:
            continue
        ids = torch.arange(size * m * p).reshape(size, m, p)
        mine = torch.arange(t.numel()).reshape(t.shape)
        known = not T.depends(other) and not other.requires_grad and bool((other == 0).any())
        if known and left:
            batch, k, j = other.nonzero(as_tuple=True)
            target, source = ids[batch, :, j], mine[batch, :, k]
        elif known:
            batch, i, k = other.nonzero(as_tuple=True)
            target, source = ids[batch, i], mine[batch, k]
        else:
            line = 2 if left else 1  # all elements of a row of a, or of a column of b
            kept, groups = line_groups(t.shape, [line])
            every = T.product(groups, np.arange(t.numel()), kept.numel(), rows)
            lines = torch.arange(kept.numel()).reshape(kept.shape).expand(size, m, p)
            parts.append(T.take(every, lines.reshape(-1).numpy()))
            continue
        parts.append(T.product(target.reshape(-1).numpy(), source.reshape(-1).numpy(), size * m * p, rows))
    return [T.union(parts)]
