"""Rules of `_rules.py` for convolutions, averages over windows, and the operators of learnsolve.ops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as combinations

import numpy as np
import torch
from torch import Tensor

from learnsolve.nonlinear._rules import Call, Sets, all_of, rule, unknown
from learnsolve.nonlinear._trace import Rows, Tracer


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
    """Pairs (element of the output, of the input) of a convolution; the weight is nonzero where `used`,
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
        parts += all_of(c.tracer, [weight], [out])
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
            sets += all_of(c.tracer, [g, x] if of == "weight" else [g], [out])
            continue
        parts = all_of(c.tracer, [weight], [out]) if c.tracer.has_rows(weight) else []
        if (rows := c.tracer.rows(g)) is not None:
            parts.append(through(c.tracer, c.named, g, rows, out, not c.named["transposed"]))
        sets.append(c.tracer.union(parts))
    return sets


@rule("avg_pool2d avg_pool3d avg_pool2d_backward avg_pool3d_backward")
def averaged(c: Call) -> Sets:
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


# --- learnsolve.ops: ptr, idx, perm and blocks are a structure (csrc/ops/schema.cpp) ---
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
