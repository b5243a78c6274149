"""Rules of `_rules.py` for the operators of learnsolve.ops: ptr, idx, perm and blocks are a structure, as
csrc/ops/schema.cpp says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from learnsolve.nonlinear._rules import Call, Sets, all_of, blocks, lines, rule, unknown
from learnsolve.nonlinear._trace import Rows, Tracer


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


def coupled(T: Tracer, parts: list, places: Tensor, count: int) -> Rows | None:
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
    return coupled(T, parts, places, out.numel())


def _sampled(
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
    return coupled(T, parts, places, out.numel())


@rule("csr_spmm")
def spmm(c: Call) -> Sets:
    structure, v, x = c.values[:3], c.named["values"], c.named["x"]
    return [_product(c.tracer, structure, v, x, c.results[0], c.named["sum_batch"], x.dim() == 1)]


@rule("csr_sddmm")
def sddmm(c: Call) -> Sets:
    return [_sampled(c.tracer, c.values[:2], c.named["u"], c.named["v"], c.results[0], c.named["sum_batch"])]


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
        of_x = coupled(c.tracer, parts, places, c.results[1].numel()) if c.named["need_x"] else None
        return [_sampled(c.tracer, rows, g, x, c.results[0], False) if c.named["need_values"] else None, of_x]
    by_transpose = c.named["crow"] is not c.named["ptr"]
    if v.dim() != 1 or x.dim() > 2 or not by_transpose:
        return unknown(c)
    return [
        _sampled(c.tracer, (c.named["crow"], c.named["col"]), g, x, c.results[0], False),
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
        sets.append(coupled(c.tracer, parts, places, out.numel()))
    return sets


@rule("csr_sptrsv direct_solve linear_steps")
def systems(c: Call) -> Sets:
    """Linear functions of the columns of b, (..., n, k), or of one, (n): dense, column by column."""
    b, sets = c.named["b"], []
    others = [t for name, t in c.named.items() if name != "b"]
    for out in c.results:
        by_column = blocks(c.tracer, [b], out, -2 if b.dim() > 1 else 0)
        sets.append(c.tracer.union([by_column, *all_of(c.tracer, others, [out])]))
    return sets


@rule("column_dots column_combination")
def columns(c: Call) -> Sets:
    """Sums along columns, over the batch, or both: learnsolve/ops/core/dots.py."""
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
    """Each entry depends on the entries of its row; for the maximum, each row on its entries."""
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
    """y_i = sum_k c_k(i) x_{i + o_k}, or, transposed, y_{i + o_k}; of the products,
    q_k(i) = u_i w_{i + o_k}."""
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
