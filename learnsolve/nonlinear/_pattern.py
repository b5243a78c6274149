"""`jacobian_sparsity`: where the Jacobian of a function may have entries, from its program, and the rules for
products with matrices (linear algebra, convolutions, averages over windows, interpolation) and for the
operators of learnsolve.ops."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product as combinations
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor, maybe_get_bdim
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils import _pytree as pytree

from learnsolve._library import operator_of_torch
from learnsolve.arguments import CALLABLE
from learnsolve.matrix.cache import plain_tensors
from learnsolve.matrix.checks import check_arguments, real_tensor
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.nonlinear import _trace
from learnsolve.nonlinear._trace import (
    Call,
    Lists,
    Rows,
    Sets,
    Tracer,
    blocks,
    call,
    count_rows,
    couple_all,
    lines,
    rule,
    scatter_rows,
    unknown,
)
from learnsolve.solvers.core.loop import users_frame


@rule("mm bmm mv dot vdot addmm baddbmm addmv")
def product(c: Call) -> Sets:
    """Zeros of a matrix that is a constant of the program, and is not trained, count."""
    name, out = c.name, c.results[0]
    *before, a, b = c.operands
    if name in ("mv", "addmv", "dot", "vdot"):
        b = b.reshape(-1, 1) if not c.tracer.has_rows(b) else b.unsqueeze(-1)
    if name in ("dot", "vdot"):
        a = a.unsqueeze(0)
    a, b = (t if t.layout is torch.strided else t.to_sparse_coo() for t in (a, b))
    a, b = (t if t.dim() == 3 else t.unsqueeze(0) for t in (a, b))
    size, m, p = (*a.shape[:2], b.shape[-1])
    parts = [c.tracer.rows(t, out.shape) for t in before]
    for t, other, left in ((a, b, True), (b, a, False)):
        rows = c.tracer.rows(t)
        if rows is None:
            continue
        ids = torch.arange(size * m * p).reshape(size, m, p)
        mine = torch.arange(t.numel()).reshape(t.shape)
        sparse = other.layout is not torch.strided
        known = sparse or (not c.tracer.depends(other) and bool((other == 0).any()))
        if known:
            at = other.coalesce().indices().unbind() if sparse else other.nonzero(as_tuple=True)
            at = [t.cpu() for t in at]
        if known and left:
            batch, k, j = at
            target, source = ids[batch, :, j], mine[batch, :, k]
        elif known:
            batch, i, k = at
            target, source = ids[batch, i], mine[batch, k]
        else:  # all elements of a row of a, or of a column of b
            parts.append(lines(c.tracer, t, [2 if left else 1], lambda ids: ids.expand(size, m, p)))
            continue
        parts.append(
            c.tracer.product(target.reshape(-1).numpy(), source.reshape(-1).numpy(), size * m * p, rows)
        )
    return [c.tracer.union(parts)]


@rule(
    "linalg_lu_solve linalg_solve_triangular triangular_solve cholesky_solve linalg_matrix_exp "
    "_scaled_dot_product_flash_attention_for_cpu_backward _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
)
def matrices(c: Call) -> Sets:
    """Dense, but matrix by matrix of a batch (what torch differentiates its linear algebra by), and column by
    column of a right-hand side, or row by row."""
    right = c.named.get("B", c.values[0]) if c.name.endswith(("solve", "_triangular")) else None
    others = [t for t in c.operands if t is not right]
    sets = [blocks(c.tracer, others, out, (-2, -1)) for out in c.results]
    if right is not None:
        dim = -2 if c.named.get("left", True) else -1
        sets[0] = c.tracer.union([sets[0], blocks(c.tracer, [right], c.results[0], dim)])
    return sets


# --- windows ---
def windows(grid: Sequence[int], positions: Sequence[int], kernel: Sequence[int], options: tuple) -> Tensor:
    """The elements of a grid that windows cover, for (stride, padding, dilation): for each offset of the
    kernel and each position of the window, -1 outside the grid; shape (offsets, positions)."""
    table = []
    for offset in combinations(*(range(k) for k in kernel)):
        element, inside = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
        for d, n in enumerate(grid):
            stride, padding, dilation = (option[d if len(option) > 1 else 0] for option in options)
            at = torch.arange(positions[d]) * stride - padding + offset[d] * dilation
            element = element[..., None] * n + at
            inside = inside[..., None] & (at >= 0) & (at < n)
        table.append(torch.where(inside, element, -1).reshape(-1))
    return torch.stack(table)


def couplings(covered: Tensor, used: Tensor, groups: int, batch: int, grid: int) -> tuple[np.ndarray, ...]:
    """Pairs (element of the output, of the input) of a convolution. The weight is nonzero where `used`,
    (channels of the output, of the input / groups, offsets)."""
    outs, ins, _ = used.shape
    o, c, k = used.nonzero(as_tuple=True)
    c = o // max(outs // groups, 1) * ins + c
    positions, inner = covered.shape[1], covered[k]
    inside = inner >= 0
    b = torch.arange(batch)[:, None, None]
    target = (b * outs + o[:, None]) * positions + torch.arange(positions)
    source = (b * ins * groups + c[:, None]) * grid + inner
    return target[:, inside].reshape(-1).numpy(), source[:, inside].reshape(-1).numpy()


def through(T: Tracer, named: dict, x: Tensor, rows: Rows, out: Tensor, adjoint: bool) -> Rows:
    """Sets of `out` = W x, or W^T x, for the convolution W of `named`."""
    weight = named["weight"]
    fine, coarse = (out, x) if adjoint else (x, out)  # W maps the fine grid to positions of windows
    grid, positions = fine.shape[2:], coarse.shape[2:]
    options = (named["stride"], named["padding"], named["dilation"])
    used = (
        (weight != 0 if not T.depends(weight) else torch.ones_like(weight, dtype=torch.bool)).flatten(2).cpu()
    )
    covered = windows(grid, positions, weight.shape[2:], options)
    pairs = couplings(covered, used, named["groups"], x.shape[0], grid.numel())
    target, source = pairs[::-1] if adjoint else pairs
    return T.product(target, source, out.numel(), rows)


@rule("convolution")
def convolution(c: Call) -> Sets:
    x, weight, bias, out = c.named["input"], c.named["weight"], c.named["bias"], c.results[0]
    parts = []
    if (rows := c.tracer.rows(x)) is not None:
        parts.append(through(c.tracer, c.named, x, rows, out, c.named["transposed"]))
    if c.tracer.has_rows(weight):
        parts += couple_all(c.tracer, [weight], [out])
    if bias is not None:
        parts.append(c.tracer.rows(bias.reshape(-1, *(1 for _ in out.shape[2:])), out.shape))
    return [c.tracer.union(parts)]


@rule("convolution_backward")
def convolution_backward(c: Call) -> Sets:
    g, x, weight = c.named["grad_output"], c.named["input"], c.named["weight"]
    sets: Sets = []
    remaining = iter(c.results)  # the results that are computed
    for wanted, of in zip(c.named["output_mask"], ("input", "weight", "bias"), strict=True):
        if not wanted:
            continue
        out = next(remaining)
        if of != "input":
            sets += couple_all(c.tracer, [g, x] if of == "weight" else [g], [out])
            continue
        parts = couple_all(c.tracer, [weight], [out]) if c.tracer.has_rows(weight) else []
        if (rows := c.tracer.rows(g)) is not None:
            parts.append(through(c.tracer, c.named, g, rows, out, not c.named["transposed"]))
        sets.append(c.tracer.union(parts))
    return sets


@rule("avg_pool2d avg_pool3d avg_pool2d_backward avg_pool3d_backward")
def trace_average(c: Call) -> Sets:
    backward = "grad_output" in c.named
    x, out = c.named["grad_output" if backward else "self"], c.results[0]
    rows = c.tracer.rows(x)
    if rows is None:
        return [None]
    fine, coarse = (out, x) if backward else (x, out)
    axes = 3 if "3d" in c.name else 2
    grid, positions = fine.shape[-axes:], coarse.shape[-axes:]
    kernel = c.named["kernel_size"]
    kernel = kernel if len(kernel) == axes else kernel * axes
    covered = windows(grid, positions, kernel, (c.named["stride"] or kernel, c.named["padding"], (1,)))
    used = torch.ones(1, 1, len(covered), dtype=torch.bool)
    pairs = couplings(covered, used, 1, fine.shape[:-axes].numel(), grid.numel())
    target, source = pairs[::-1] if backward else pairs
    return [c.tracer.product(target, source, out.numel(), rows)]


@rule(
    "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _adaptive_avg_pool2d "
    "_adaptive_avg_pool3d upsample_linear1d_backward upsample_bilinear2d_backward "
    "upsample_trilinear3d_backward upsample_bicubic2d_backward"
)
def separable(c: Call) -> Sets:
    """One matrix for each axis, which the operation itself shows for the columns of the identity."""
    backward = c.name.endswith("_backward")
    x, out = c.values[0], c.results[0]
    rows = c.tracer.rows(x)
    if rows is None:
        return [None]
    fine, coarse = (out, x) if backward else (x, out)
    forward = operator_of_torch(c.name.removesuffix("_backward"))
    axes = len(c.named["output_size"])
    target = source = np.arange(coarse.shape[:-axes].numel())
    for d, (n, m) in enumerate(zip(fine.shape[-axes:], coarse.shape[-axes:], strict=True)):
        given = {**c.named, "self": torch.eye(n, dtype=x.dtype).reshape(1, n, *_only(d, n, axes))}
        given["input"], given["output_size"] = given["self"], _only(d, m, axes)
        shown = call(forward, [given[a.name] for a in forward._schema.arguments])
        i, j = (t.numpy() for t in shown.reshape(n, m).T.nonzero(as_tuple=True))
        target, source = ((t[:, None] * k + at).reshape(-1) for t, k, at in ((target, m, i), (source, n, j)))
    target, source = (source, target) if backward else (target, source)
    return [c.tracer.product(target, source, out.numel(), rows)]


def _only(d: int, n: int, axes: int) -> list[int]:
    return [n if e == d else 1 for e in range(axes)]


@rule(
    "col2im unfold_backward reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
    "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward "
    "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
    "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward"
)
def trace_adjoint_move(c: Call) -> Sets:
    """The adjoint of an operation that moves: that shows where each element came from."""
    out, names = c.results[0], {"col2im": "im2col", "unfold_backward": "unfold"}
    forward = operator_of_torch(names.get(c.name, c.name.removesuffix("_backward")))
    ids = torch.arange(1, out.numel() + 1, dtype=torch.float64, device=out.device).reshape(out.shape)
    given = {**c.named, "self": ids, "dimension": c.named.get("dim")}
    places = call(forward, [given[a.name] for a in forward._schema.arguments])
    return [scatter_rows(c.tracer, c.values[0], places.long() - 1, out)]


@rule("grid_sampler_2d_backward grid_sampler_3d_backward")
def trace_sample_backward(c: Call) -> Sets:
    """Of the input each channel is dense. Each point of the grid is moved for itself."""
    g, of_input = c.values[0], c.named["output_mask"][0]  # else there is only one result
    sets = [blocks(c.tracer, [g], out, range(2, g.dim())) for out in c.results[:of_input]]
    for out in c.results[of_input:]:
        sets.append(lines(c.tracer, g, 1, lambda ids, out=out: ids[:, 0, ..., None].expand(out.shape)))
    return sets


@rule("_cdist_backward")
def distances_backward(c: Call) -> Sets:
    return [blocks(c.tracer, c.values[:1], c.results[0], -1)]


# Rules for the operators of learnsolve.ops: ptr, idx, perm and blocks are a structure, as
# csrc/ops/schema.cpp says.


def entries(ptr: Tensor, idx: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of each entry."""
    ptr, idx = ptr.cpu(), idx.cpu().long()
    return torch.repeat_interleave(torch.arange(len(ptr) - 1), ptr.diff().long()), idx


def spread(
    T: Tracer, t: Tensor, axes: int, at: Tensor, batch: int, columns: int
) -> tuple[Rows, Tensor] | None:
    """Sets of a dense operand or of values, and its elements at `at`, (batch, entries, columns)."""
    rows = T.rows(t)
    if rows is None:
        return None
    ids = torch.arange(t.numel()).reshape(t.shape)
    ids = ids if t.dim() == axes + 1 else ids.unsqueeze(0)
    ids = ids[:, at]  # (B or 1, entries[, k])
    ids = ids if ids.dim() == 3 else ids.unsqueeze(-1)
    return rows, ids.expand(batch, len(at), columns)


def couple_rows(T: Tracer, parts: list, places: Tensor, count: int) -> Rows | None:
    """The union of `spread` operands, each at `places` of the result, (batch, entries, columns)."""
    sets = []
    for part in parts:
        if part is not None:
            rows, ids = part
            shape = torch.broadcast_shapes(places.shape, ids.shape)
            target, source = (t.expand(shape).reshape(-1).numpy() for t in (places, ids))
            sets.append(T.product(target, source, count, rows))
    return T.union(sets)


def _product(
    T: Tracer, structure: Sequence[Tensor], v: Tensor, x: Tensor, out: Tensor, sum_batch: bool, vector: bool
) -> Rows | None:
    """y = S x: each entry (i, j) passes its value and x_j on to y_i."""
    row, column = entries(*structure[:2])
    perm = structure[2].cpu().long() if len(structure[2]) else torch.arange(len(column))
    axes = 1 if vector else 2
    batch = max(len(v) if v.dim() == 2 else 1, len(x) if x.dim() == axes + 1 else 1)
    columns = 1 if vector else x.shape[-1]
    rows = len(structure[0]) - 1
    b = torch.zeros(batch, dtype=torch.int64) if sum_batch else torch.arange(batch)
    places = (b[:, None, None] * rows + row[:, None]) * columns + torch.arange(columns)
    parts = [spread(T, v, 1, perm, batch, columns), spread(T, x, axes, column, batch, columns)]
    return couple_rows(T, parts, places, out.numel())


def _couple_samples(
    T: Tracer, structure: Sequence[Tensor], u: Tensor, v: Tensor, out: Tensor, sum_batch: bool
) -> Rows | None:
    """Entry (i, j) is <u_i, v_j>."""
    row, column = entries(*structure[:2])
    axes = min(u.dim(), 2)
    batch = max(len(t) if t.dim() == 3 else 1 for t in (u, v))
    columns = 1 if axes == 1 else u.shape[-1]
    b = torch.zeros(batch, dtype=torch.int64) if sum_batch else torch.arange(batch)
    places = (b[:, None, None] * len(row) + torch.arange(len(row))[:, None]).expand(batch, len(row), columns)
    parts = [spread(T, t, axes, at, batch, columns) for t, at in ((u, row), (v, column))]
    return couple_rows(T, parts, places, out.numel())


@rule("csr_spmm")
def spmm(c: Call) -> Sets:
    structure, v, x = c.values[:3], c.named["values"], c.named["x"]
    return [_product(c.tracer, structure, v, x, c.results[0], c.named["sum_batch"], x.dim() == 1)]


@rule("csr_sddmm")
def sddmm(c: Call) -> Sets:
    return [
        _couple_samples(
            c.tracer, c.values[:2], c.named["u"], c.named["v"], c.results[0], c.named["sum_batch"]
        )
    ]


@rule("csr_spmm_backward csr_spmv_scatter_backward")
def spmm_backward(c: Call) -> Sets:
    """(entries of g x^T, A^T g): by the rows of A, (crow, col), and of A^T."""
    v, g, x = c.named["values"], c.named["g"], c.named["x"]
    if c.name.endswith("scatter_backward"):
        rows = (c.named["ptr"], c.named["idx"])
        row, column = entries(*rows)
        places = column[None, :, None]
        ids = torch.arange(len(row))
        parts = [spread(c.tracer, v, 1, ids, 1, 1), spread(c.tracer, g, 1, row, 1, 1)]
        of_x = couple_rows(c.tracer, parts, places, c.results[1].numel()) if c.named["need_x"] else None
        return [
            _couple_samples(c.tracer, rows, g, x, c.results[0], False) if c.named["need_values"] else None,
            of_x,
        ]
    by_transpose = c.named["crow"] is not c.named["ptr"]
    if v.dim() != 1 or x.dim() > 2 or not by_transpose:
        return unknown(c)
    return [
        _couple_samples(c.tracer, (c.named["crow"], c.named["col"]), g, x, c.results[0], False),
        _product(c.tracer, c.values[:3], v, g, c.results[1], False, g.dim() == 1),
    ]


@rule("csr_spgemm csr_spgemm_left csr_spgemm_right csr_spgemm_backward")
def spgemm(c: Call) -> Sets:
    """C = A B: each product brings an entry of A and one of B to one of C, and their derivatives likewise."""
    a_ptr, a_idx, perm, b_ptr, b_idx, c_ptr, c_idx = (t.cpu().long() for t in c.named["plan"][:7])
    row, k = entries(a_ptr, a_idx)
    if c.name in ("csr_spgemm_right", "csr_spgemm_backward"):  # those of A^T
        row, k = k, row
    count = b_ptr.diff()[k]
    p = torch.repeat_interleave(count)
    q = b_ptr[k[p]] + torch.arange(len(p)) - (count.cumsum(0) - count)[p]
    width = 1 + max(int(t.max()) if len(t) else 0 for t in (b_idx, c_idx))
    c_row, c_col = entries(c_ptr, c_idx)
    key, keys = row[p] * width + b_idx[q], c_row * width + c_col
    r = torch.searchsorted(keys, key).clamp(max=max(len(keys) - 1, 0))
    inside = keys[r] == key if len(keys) else key < 0  # others are masked
    at = {"a": (perm[p] if len(perm) else p)[inside], "b": q[inside], "g": r[inside]}
    results = {"csr_spgemm": "g", "csr_spgemm_left": "a", "csr_spgemm_right": "b"}
    sets = []
    for of, out in zip(results.get(c.name, "ab"), c.results, strict=True):
        operands = {n: c.named[n] for n in "abg" if n != of and n in c.named}
        batch = max(len(t) if t.dim() == 2 else 1 for t in operands.values())
        b = torch.arange(batch) if out.dim() == 2 else torch.zeros(batch, dtype=torch.int64)
        places = (b[:, None] * out.shape[-1] + at[of])[..., None]
        parts = [spread(c.tracer, t, 1, at[n], batch, 1) for n, t in operands.items()]
        sets.append(couple_rows(c.tracer, parts, places, out.numel()))
    return sets


@rule("csr_sptrsv direct_solve linear_steps")
def systems(c: Call) -> Sets:
    """Linear functions of the columns of b, (..., n, k), or of one, (n): dense, column by column."""
    b, sets = c.named["b"], []
    others = [t for name, t in c.named.items() if name != "b"]
    for out in c.results:
        by_column = blocks(c.tracer, [b], out, -2 if b.dim() > 1 else 0)
        sets.append(c.tracer.union([by_column, *couple_all(c.tracer, others, [out])]))
    return sets


@rule("column_dots column_combination")
def columns(c: Call) -> Sets:
    """Sums along columns, over the batch, or both: learnsolve/ops/products.py."""
    dots, out, sets = c.name == "column_dots", c.results[0], []
    dims = [1] if dots and not c.named["sum_batch"] else [0, 1] if dots else [0]
    shape = (*(out.shape[:-1] or (1,)), 1, out.shape[-1]) if dots else (1, *out.shape)
    for t, axes in zip(c.operands, (2 if dots else 1, 2), strict=True):
        t = t if t.dim() > axes else t.unsqueeze(0)
        sets.append(lines(c.tracer, t, dims, lambda ids: ids.expand(shape)))
    return [c.tracer.union(sets)]


@rule("csr_add")
def add(c: Call) -> Sets:
    """The positions of the entries of a and of b, determined with the operator itself."""
    sets = []
    for name in ("a", "b"):
        if (rows := c.tracer.rows(t := c.named[name])) is not None:
            ids = torch.arange(1, t.numel() + 1, dtype=torch.float64, device=t.device).reshape(t.shape)
            of = {"a": torch.zeros_like(c.named["a"], dtype=ids.dtype), "alpha": 1.0, "beta": 1.0}
            of["b"] = torch.zeros_like(c.named["b"], dtype=ids.dtype)
            at = c.func(**{**c.named, **of, name: ids}).reshape(-1).long().cpu().numpy() - 1
            sets.append(c.tracer.take(rows, np.where(at < 0, t.numel(), at)))
    return [c.tracer.union(sets)]


@rule("csr_segment_softmax csr_segment_softmax_backward csr_segment_max")
def segments(c: Call) -> Sets:
    """Each entry depends on the entries of its row. For the maximum, each row depends on its entries."""
    ptr, idx, perm = c.values[0][:3]
    row, _ = entries(ptr, idx)
    where = perm.cpu().long() if len(perm) else torch.arange(len(row))
    sets = []
    for t in c.values[1:]:
        if not isinstance(t, Tensor) or (rows := c.tracer.rows(t)) is None:
            continue
        ids = torch.arange(t.numel()).reshape(-1, len(row), t.shape[-1])[:, where]
        lines = torch.arange(ids.shape[0])[:, None, None] * (len(ptr) - 1) + row[:, None]
        lines = lines * t.shape[-1] + torch.arange(t.shape[-1])
        count = ids.shape[0] * (len(ptr) - 1) * t.shape[-1]
        every = c.tracer.product(lines.reshape(-1).numpy(), ids.reshape(-1).numpy(), count, rows)
        if c.name.endswith("segment_max"):
            return [every, None]
        back = torch.empty(t.numel(), dtype=torch.int64)
        back[ids.reshape(-1)] = lines.reshape(-1)
        sets.append(c.tracer.take(every, back.numpy()))
    return [c.tracer.union(sets)]


@rule("stencil stencil_products")
def stencil(c: Call) -> Sets:
    """y_i = sum_k c_k(i) x_{i + o_k}, or, transposed, y_{i + o_k}, and for the products q_k(i) = u_i w_{i +
    o_k}."""
    products = c.name.endswith("products")
    a, b = c.values[:2]
    d, out = len(c.named["periodic"]), c.results[0]
    grid, offsets = b.shape[-d:], torch.tensor(c.named["offsets"]).reshape(-1, d)
    point = torch.arange(grid.numel())
    neighbor, inside = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
    for n, wraps, coordinate, offset in zip(
        grid, c.named["periodic"], torch.unravel_index(point, grid), offsets.T, strict=True
    ):
        moved = coordinate + offset[:, None]
        neighbor = neighbor * n + moved % n
        inside = inside & ((moved >= 0) & (moved < n) | bool(wraps))
    k, here = inside.nonzero(as_tuple=True)
    there, wide = neighbor[inside], k * len(point) + here
    by_offset = (len(offsets), *grid)
    batch = max(
        t.shape[0] if t.dim() > len(s) else 1 for t, s in ((a, grid if products else by_offset), (b, grid))
    )

    def elements(t: Tensor, shape: Sequence[int], at: Tensor) -> np.ndarray:
        ids = torch.arange(t.numel()).reshape(t.shape)
        ids = ids if t.dim() > len(shape) else ids.unsqueeze(0)
        return ids.expand(batch, *shape).reshape(batch, -1)[:, at].reshape(-1).numpy()

    if products:
        target, operands = elements(out, by_offset, wide), ((a, grid, here), (b, grid, there))
    else:
        ends = (there, here) if c.named["transpose"] else (here, there)
        target, operands = elements(out, grid, ends[0]), ((a, by_offset, wide), (b, grid, ends[1]))
    sets = [(c.tracer.rows(t), elements(t, shape, at)) for t, shape, at in operands]
    return [
        c.tracer.union(
            [c.tracer.product(target, at, out.numel(), rows) for rows, at in sets if rows is not None]
        )
    ]


def require_values(function: str, name: str, u: Tensor) -> Tensor:
    if u.is_meta:
        raise ValueError(f"{function}: {name} must have values, got a tensor on meta")
    return u


Function = Annotated[Callable[..., Tensor], CALLABLE]
VARIABLE = real_tensor(require_values)


@check_arguments
def jacobian_sparsity(f: Function, u: Annotated[Tensor, VARIABLE], *args: object) -> SparsityPattern:
    r"""Where the Jacobian of f with respect to u may have entries, from the operations that f calls.

    Parameters
    ----------
    f : function of u and args that returns a tensor of u's dtype, of torch and `learnsolve` operations
    u : Tensor, float32 or float64, of any shape
    args : further arguments of f: tensors, matrices, numbers, nested in lists, tuples and dictionaries

    Returns
    -------
    SparsityPattern, shape (f(u).numel(), u.numel())
        :math:`\partial f_i / \partial u_j` is zero at all u where it has no entry (i, j), with i and j in the
        order of the flattened tensors.

    Raises
    ------
    ValueError
        if f uses random numbers, writes into u, or depends on u in more than 2^28 entries.
    TypeError
        if f does not return a tensor of u's dtype.

    Warns
    -----
    RuntimeWarning
        names an operation without a rule, whose results are taken to depend on all of its arguments, and one
        by which values of u or args decide what f computes (`if`, indices): the pattern is that of these.

    Notes
    -----
    Global: it holds for all values of u and of floating-point args. Both branches of `torch.where` count, and
    any element of a line may be its largest. Integers and numbers in args and constants of f are a part of
    the program, with the zeros of constant matrices that do not require grad. Some entries may always be 0.
    Cost: one derivative of f along one direction, and O(nnz) for each operation. No gradient. Source: the
    index sets of A. Griewank and A. Walther, "Evaluating Derivatives", SIAM 2008, section 7.1.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> ls.nonlinear.jacobian_sparsity(lambda u: u[1:] * u[:-1], torch.ones(1000))
    SparsityPattern(shape=(999, 1000), nnz=1998, indices=int32, device=cpu)
    """
    return find_pattern("jacobian_sparsity", f, u, args)


def find_pattern(function: str, f: Callable[..., Tensor], u: Tensor, args: tuple) -> SparsityPattern:
    """`jacobian_sparsity`, called by `function`."""

    def flat(x: Tensor, shape: torch.Size, args: tuple) -> Tensor:
        return flat_output(function, f(x.reshape(shape), *args), x)

    with outside(function, u, args) as (plain, plain_args):
        return trace_pattern(function, flat, plain, plain_args, "auto")[0]


@contextmanager
def outside(function: str, u: Tensor, args: tuple) -> Iterator[tuple[Tensor, tuple]]:
    """The numbers of the arguments, outside of the transformations of torch.func that are active. Where
    `vmap` maps, they are the first member's, since all share the pattern."""
    with temporarily_clear_interpreter_stack(), translate_errors(function):
        u, args = pytree.tree_map(
            lambda t: first_sample(function, t) if isinstance(t, Tensor) else t, (u, args)
        )
        yield u.clone(memory_format=torch.contiguous_format), args


_MEMORY = (
    "f must consist of operations of torch and learnsolve, but takes the memory of a tensor that depends on "
    "u, as .numpy() and torch.sparse_coo_tensor do. Write f in torch, with a learnsolve.CSR for a sparse "
    "matrix, or an autograd.Function with a jvp"
)
_SPARSE = (
    "f uses a torch.sparse tensor T in an operation other than T @ u, or T is not a constant in COO layout. "
    "Make it a learnsolve.CSR, CSR.from_torch(T), or dense, T.to_dense()"
)
_REASONS = {"data pointer": _MEMORY, "numpy()": _MEMORY, "do not have strides": _SPARSE}
_REASONS |= {"access storage of Sparse": _SPARSE, "_sparse_coo_tensor": _SPARSE, "with _to_sparse": _SPARSE}
_REASONS |= {"with sparse_mask": _SPARSE}


@contextmanager
def translate_errors(function: str) -> Iterator[None]:
    """What torch says of an f that it cannot differentiate, in our words."""
    try:
        yield
    except RuntimeError as error:
        for said, reason in _REASONS.items():
            if said in str(error):
                raise ValueError(f"{function}: {reason}") from error
        raise


def first_sample(function: str, t: Tensor) -> Tensor:
    while is_functorch_wrapped_tensor(t):
        inner = get_unwrapped(t)
        if is_batchedtensor(t):
            if not t.is_floating_point():
                raise NotImplementedError(
                    f"{function}: torch.func.vmap maps over an integer tensor among args, which may decide "
                    "the pattern. Map over floating-point tensors only"
                )
            inner = inner.select(maybe_get_bdim(t), 0)
        t = inner
    return t.detach()


class _Content:
    """A tensor that is a part of the program, as a key: equal to those with the same values."""

    def __init__(self, t: Tensor):
        self.t = t

    def __hash__(self) -> int:
        return hash((self.t.shape, self.t.dtype, self.t.device))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and hash(self) == hash(other) and torch.equal(self.t, other.t)


def program_key(function: str, u: Tensor, args: tuple, keep: bool = False) -> tuple:
    """Arguments with equal keys have the same pattern: values of floating-point tensors may differ. All
    other arguments are part of the program, which may branch on them or index with them. `keep`: with
    copies of what may change."""
    leaves, structure = pytree.tree_flatten(args)  # the structure holds the patterns of CSRs
    key: list[Any] = [tuple(u.shape), u.dtype, u.device, structure]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            key.append(tuple(leaf.shape))
            if not leaf.is_floating_point():
                t = first_sample(function, leaf)
                key.append(_Content(t.clone() if keep else t))
        elif isinstance(leaf, np.ndarray):
            key += [leaf.shape, leaf.dtype, leaf.tobytes()]
        elif isinstance(leaf, slice):
            key.append(leaf.__reduce__())
        else:
            try:
                hash(leaf)
            except TypeError:
                leaf = object()  # never found again
            key += [type(leaf), leaf]
    return tuple(key)


def trace_pattern(
    function: str, f: Callable[[Tensor, torch.Size, tuple], Tensor], u: Tensor, args: tuple, mode: str
) -> tuple[SparsityPattern, str]:
    """The pattern, and the mode that found it: torch has no forward mode for some operations."""
    x = u.reshape(-1)

    def flat(x: Tensor) -> Tensor:
        return f(x, u.shape, args)

    if mode != "reverse":
        try:
            return _pattern(function, *_forward(function, flat, x, args)), mode
        except (NotImplementedError, RuntimeError) as error:  # of torch's forward mode
            if mode == "forward":
                raise
            try:
                return _pattern(function, *_reverse(function, flat, x, args)).T, "reverse"
            except (NotImplementedError, RuntimeError):
                raise error from None
    return _pattern(function, *_reverse(function, flat, x, args)).T, "reverse"


def _forward(function: str, flat: Callable, x: Tensor, args: tuple) -> tuple[Tracer, Rows]:
    """Rows of J: its products with a tangent."""
    tracer = Tracer(function, x, _trace, x.numel())
    mark(tracer, x, args)
    tangent = generic_point(x)
    tracer.write(tangent, identity(x.numel()))
    with torch.no_grad(), tracer, Lists(tracer):
        out, along = torch.func.jvp(flat, (x,), (tangent,))[:2]
    if tracer.only_reverse:
        raise NotImplementedError(tracer.only_reverse)
    rows = tracer.rows(along)
    return tracer, tracer.empty(out.numel()) if rows is None else rows


def _reverse(function: str, flat: Callable, x: Tensor, args: tuple) -> tuple[Tracer, Rows]:
    """Rows of J^T: its products with a cotangent."""
    tracer = Tracer(function, x, _trace, 0)
    mark(tracer, x, args)
    with tracer, Lists(tracer):
        out, pull = torch.func.vjp(flat, x)[:2]
    tracer.width = out.numel()
    cotangent = generic_point(out)
    tracer.write(cotangent, identity(out.numel()))
    with tracer:
        along = pull(cotangent)[0]
    rows = tracer.rows(along)
    return tracer, tracer.empty(x.numel()) if rows is None else rows


def mark(tracer: Tracer, x: Tensor, args: tuple) -> None:
    """u and floating-point args take other values in other calls. Integers are a part of the program."""
    for t in (x, *pytree.tree_leaves(args)):
        if isinstance(t, Tensor) and t.is_floating_point():
            tracer.write(t, None)


def generic_point(t: Tensor) -> Tensor:
    """Numbers of which no derivative vanishes by chance, equal in each call."""
    with plain_tensors():
        generator = torch.Generator().manual_seed(20)
        return torch.randn(t.shape, dtype=t.dtype, generator=generator, device="cpu").to(t.device)


def identity(n: int) -> Rows:
    dtype = np.int32 if n < 2**31 - 1 else np.int64
    parts = (np.ones(n, dtype=bool), np.arange(n, dtype=dtype), np.arange(n + 1, dtype=dtype))
    return Rows(parts, shape=(n, n))


_SAY = {
    "dense": "no rule for {}: its results are taken to depend on all that its arguments depend on",
    "values": "{} reads values of u or args, which decide what f computes: the pattern is only valid for "
    "these values",
}


def _pattern(function: str, tracer: Tracer, rows: Rows) -> SparsityPattern:
    for kind, what in tracer.notes:
        warnings.warn(f"{function}: {_SAY[kind].format(what)}", RuntimeWarning, stacklevel=users_frame())
    return build_pattern(rows, tracer.width)


def build_pattern(rows: Rows, width: int) -> SparsityPattern:
    shape = (count_rows(rows), width)
    dtype = np.int32 if max(*shape, len(rows.indices)) < 2**31 else np.int64
    crow, col = (torch.from_numpy(a.astype(dtype)) for a in (rows.indptr, rows.indices))
    return SparsityPattern(crow, col, shape)


def flat_output(function: str, out: object, u: Tensor) -> Tensor:
    if not isinstance(out, Tensor):
        raise TypeError(f"{function}: f must return a torch.Tensor, got {type(out).__name__}")
    if out.dtype != u.dtype:
        raise TypeError(
            f"{function}: f must return the dtype of u, {u.dtype}, got {out.dtype}. Convert one with .to()"
        )
    return out.reshape(-1)
