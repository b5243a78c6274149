"""Rules of `_rules.py` for products with matrices: linear algebra, convolutions, averages over windows,
interpolation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as combinations

import numpy as np
import torch
from torch import Tensor

from learnsolve._library import operator_of_torch
from learnsolve.nonlinear._rules import Call, Sets, all_of, blocks, call, lines, placed, rule
from learnsolve.nonlinear._trace import Rows, Tracer


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
def moved_back(c: Call) -> Sets:
    """The adjoint of an operation that moves: that shows where each element came from."""
    out, names = c.results[0], {"col2im": "im2col", "unfold_backward": "unfold"}
    forward = operator_of_torch(names.get(c.name, c.name.removesuffix("_backward")))
    ids = torch.arange(1, out.numel() + 1, dtype=torch.float64, device=out.device).reshape(out.shape)
    given = {**c.named, "self": ids, "dimension": c.named.get("dim")}
    places = call(forward, [given[a.name] for a in forward._schema.arguments])
    return [placed(c.tracer, c.values[0], places.long() - 1, out)]


@rule("grid_sampler_2d_backward grid_sampler_3d_backward")
def sampled_backward(c: Call) -> Sets:
    """Of the input each channel is dense; each point of the grid is moved for itself."""
    g, of_input = c.values[0], c.named["output_mask"][0]  # else there is only one result
    sets = [blocks(c.tracer, [g], out, range(2, g.dim())) for out in c.results[:of_input]]
    for out in c.results[of_input:]:
        sets.append(lines(c.tracer, g, 1, lambda ids, out=out: ids[:, 0, ..., None].expand(out.shape)))
    return sets


@rule("_cdist_backward")
def distances_backward(c: Call) -> Sets:
    return [blocks(c.tracer, c.values[:1], c.results[0], -1)]
