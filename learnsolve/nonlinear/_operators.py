"""Rules of `_rules.py` for convolutions, averages over windows, and the operators of learnsolve.ops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve.nonlinear._rules import all_of, rule, unknown
from learnsolve.nonlinear._trace import Rows, Tracer


def windows(grid: Sequence[int], positions: Sequence[int], kernel: Sequence[int], options: tuple) -> Tensor:
    """Which elements of a grid windows cover, for (stride, padding, dilation): for each offset of the kernel
    and each position of the window, -1 outside of the grid; shape (offsets, positions)."""
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
    """(elements of the output, of the input) of a convolution, by pairs; the weight is nonzero where `used`,
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
    known = not T.depends(weight) and not weight.requires_grad
    used = (weight != 0 if known else torch.ones_like(weight, dtype=torch.bool)).flatten(2)
    covered = windows(grid, positions, weight.shape[2:], options)
    pairs = couplings(covered, used, named["groups"], x.shape[0], grid.numel())
    target, source = pairs[::-1] if adjoint else pairs
    return T.product(target, source, out.numel(), rows)


@rule("convolution")
def convolution(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    x, weight, bias, out = named["input"], named["weight"], named["bias"], results[0]
    parts = []
    if (rows := T.rows(x)) is not None:
        parts.append(through(T, named, x, rows, out, named["transposed"]))
    if T.has_rows(weight):
        parts += all_of(T, [weight], [out])
    if bias is not None:
        parts.append(T.rows(bias.reshape(-1, *(1 for _ in out.shape[2:])), out.shape))
    return [T.union(parts)]


@rule("convolution_backward")
def convolution_backward(
    T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]
) -> list[Rows | None]:
    g, x, weight = named["grad_output"], named["input"], named["weight"]
    sets: list[Rows | None] = []
    remaining = iter(results)  # those that are computed
    for wanted, of in zip(named["output_mask"], ("input", "weight", "bias"), strict=True):
        if not wanted:
            continue
        out = next(remaining)
        if of != "input":
            sets += all_of(T, [g, x] if of == "weight" else [g], [out])
            continue
        parts = all_of(T, [weight], [out]) if T.has_rows(weight) else []
        if (rows := T.rows(g)) is not None:
            parts.append(through(T, named, g, rows, out, not named["transposed"]))
        sets.append(T.union(parts))
    return sets


@rule("avg_pool2d avg_pool3d avg_pool2d_backward avg_pool3d_backward")
def averaged(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    backward = "grad_output" in named
    x, out = named["grad_output" if backward else "self"], results[0]
    rows = T.rows(x)
    if rows is None:
        return [None]
    fine, coarse = (out, x) if backward else (x, out)
    axes = 3 if "3d" in func._schema.name else 2
    grid, positions = fine.shape[-axes:], coarse.shape[-axes:]
    kernel = named["kernel_size"]
    kernel = kernel if len(kernel) == axes else kernel * axes
    covered = windows(grid, positions, kernel, (named["stride"] or kernel, named["padding"], (1,)))
    used = torch.ones(1, 1, len(covered), dtype=torch.bool)
    pairs = couplings(covered, used, 1, fine.shape[:-axes].numel(), grid.numel())
    target, source = pairs[::-1] if backward else pairs
    return [T.product(target, source, out.numel(), rows)]


# --- learnsolve.ops: ptr, idx, perm and blocks are a structure, as csrc/ops/schema.cpp says ---
def entries(ptr: Tensor, idx: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of each entry."""
    return torch.repeat_interleave(torch.arange(len(ptr) - 1), ptr.diff().long()), idx.long()


def spread(
    T: Tracer, t: Tensor, axes: int, at: Tensor, batch: int, columns: int
) -> tuple[Rows, Tensor] | None:
    """Sets of a dense operand or of values, and the elements of it at `at`, (batch, entries, columns)."""
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
    T: Tracer, structure: tuple, v: Tensor, x: Tensor, out: Tensor, sum_batch: bool, vector: bool
) -> Rows | None:
    """y = S x: each entry (i, j) brings its value and x_j to y_i."""
    row, column = entries(*structure[:2])
    perm = structure[2].long() if len(structure[2]) else torch.arange(len(column))
    axes = 1 if vector else 2
    batch = max(len(v) if v.dim() == 2 else 1, len(x) if x.dim() == axes + 1 else 1)
    columns = 1 if vector else x.shape[-1]
    rows = len(structure[0]) - 1
    b = torch.zeros(batch, dtype=torch.int64) if sum_batch else torch.arange(batch)
    places = (b[:, None, None] * rows + row[:, None]) * columns + torch.arange(columns)
    parts = [spread(T, v, 1, perm, batch, columns), spread(T, x, axes, column, batch, columns)]
    return coupled(T, parts, places, out.numel())


def _sampled(T: Tracer, structure: tuple, u: Tensor, v: Tensor, out: Tensor, sum_batch: bool) -> Rows | None:
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
def spmm(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    structure, v, x = values[:3], named["values"], named["x"]
    return [_product(T, structure, v, x, results[0], named["sum_batch"], x.dim() == 1)]


@rule("csr_sddmm")
def sddmm(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    return [_sampled(T, values[:2], named["u"], named["v"], results[0], named["sum_batch"])]


@rule("csr_spmm_backward csr_spmv_scatter_backward")
def spmm_backward(
    T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]
) -> list[Rows | None]:
    """(entries of g x^T, A^T g): the values by rows (crow, col) of A, x by those of A^T."""
    v, g, x = named["values"], named["g"], named["x"]
    if func._schema.name.endswith("scatter_backward"):
        rows = (named["ptr"], named["idx"])
        row, column = entries(*rows)
        places = column[None, :, None]
        ids = torch.arange(len(row))
        parts = [spread(T, v, 1, ids, 1, 1), spread(T, g, 1, row, 1, 1)]
        of_x = coupled(T, parts, places, results[1].numel()) if named["need_x"] else None
        return [_sampled(T, rows, g, x, results[0], False) if named["need_values"] else None, of_x]
    by_transpose = named["crow"] is not named["ptr"]
    if v.dim() != 1 or x.dim() > 2 or not by_transpose:
        return unknown(T, func, values, named, results)
    return [
        _sampled(T, (named["crow"], named["col"]), g, x, results[0], False),
        _product(T, values[:3], v, g, results[1], False, g.dim() == 1),
    ]


@rule("csr_segment_softmax csr_segment_softmax_backward csr_segment_max")
def segments(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    """Each entry depends on those of its row; of the maximum, each row on its entries."""
    ptr, idx, perm = values[0][:3]
    row, _ = entries(ptr, idx)
    where = perm.long() if len(perm) else torch.arange(len(row))
    sets = []
    for t in values[1:]:
        if not isinstance(t, Tensor) or (rows := T.rows(t)) is None:
            continue
        ids = torch.arange(t.numel()).reshape(-1, len(row), t.shape[-1])[:, where]
        lines = torch.arange(ids.shape[0])[:, None, None] * (len(ptr) - 1) + row[:, None]
        lines = lines * t.shape[-1] + torch.arange(t.shape[-1])
        count = ids.shape[0] * (len(ptr) - 1) * t.shape[-1]
        every = T.product(lines.reshape(-1).numpy(), ids.reshape(-1).numpy(), count, rows)
        if func._schema.name.endswith("segment_max"):
            return [every, None]
        back = torch.empty(t.numel(), dtype=torch.int64)
        back[ids.reshape(-1)] = lines.reshape(-1)
        sets.append(T.take(every, back.numpy()))
    return [T.union(sets)]


@rule("stencil stencil_products")
def stencil(T: Tracer, func: Any, values: list, named: dict, results: list[Tensor]) -> list[Rows | None]:
    """y_i = sum_k c_k(i) x_{i + o_k}, or, transposed, y_{i + o_k}; of the products, q_k(i) = u_i w_{i + o_k}."""
    products = func._schema.name.endswith("products")
    a, b = values[:2]
    d, out = len(named["periodic"]), results[0]
    grid, offsets = b.shape[-d:], torch.tensor(named["offsets"]).reshape(-1, d)
    point = torch.arange(grid.numel())
    neighbor, inside = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
    for n, wraps, coordinate, offset in zip(
        grid, named["periodic"], torch.unravel_index(point, grid), offsets.T, strict=True
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
        ends = (there, here) if named["transpose"] else (here, there)
        target, operands = elements(out, grid, ends[0]), ((a, by_offset, wide), (b, grid, ends[1]))
    sets = [(T.rows(t), elements(t, shape, at)) for t, shape, at in operands]
    return [T.union([T.product(target, at, out.numel(), rows) for rows, at in sets if rows is not None])]
