"""A Jacobian from few derivatives: one for each color of its columns (or rows), and its entries taken out.

Columns of one color have no row in common, so the derivative of f along the sum of their unit vectors shows
the entries of all of them. Which entry stands where is planned once per pattern.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from learnsolve import _analysis, ordering
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern, as_numpy
from learnsolve.ops.core.autograd import tracked
from learnsolve.ops.sptrsv import sptrsv

# A group has at most so many elements: larger arrays go back to the system when they are freed, and come
# again page by page.
_ELEMENTS = 2**21


class Plan(NamedTuple):
    """How the values of a pattern are read from compressed derivatives, an array of shape (count, length)."""

    colors: Tensor
    """Color of each element of a seed, shape (width,)."""
    count: int
    """Of the colors."""
    length: int
    """Of one derivative."""
    group: int
    """How many derivatives are computed at a time: they take no more memory than the values."""
    positions: Tensor
    """Place of each value in the flattened array, shape (nnz,); with an order, group by group. Of the
    pattern's index type where that holds them."""
    ptr: tuple[int, ...]
    """Values of group g are those from ptr[g] to ptr[g + 1]."""
    order: Tensor | None
    """Place of each value of the pattern among them, shape (nnz,). None: the whole array is not much larger
    than the values, and is kept."""
    triangle: SparsityPattern | None = None
    """Of an acyclic coloring: what is read are right-hand sides, sums of unknowns, a unit lower triangle."""
    unknown: Tensor | None = None
    """Which unknown each value is, int64, shape (nnz,)."""


def plan(pattern: SparsityPattern, mode: str) -> Plan:
    """For products with J ("forward") or with J^T ("reverse")."""
    return pattern._planned(_plan, mode)


def _plan(pattern: SparsityPattern, mode: str) -> Plan:
    seeded = pattern if mode == "forward" else pattern.T
    coloring = ordering.column_coloring(seeded)
    rows, columns = _places(pattern)
    shown, seeds = (rows, columns) if mode == "forward" else (columns, rows)
    return make_plan(coloring, coloring.colors.long()[seeds], shown, seeded.shape)


def _places(pattern: SparsityPattern) -> tuple[Tensor, Tensor]:
    """Row and column of each entry; the pattern keeps no rows for this one use."""
    return torch.repeat_interleave(pattern.crow_indices.diff()), pattern.col_indices.long()


def symmetric_plan(pattern: SparsityPattern, method: str) -> Plan:
    """For products with a symmetric matrix, colored by "star", "acyclic" or "columns"."""
    return pattern._planned(_symmetric_plan, method)


def _symmetric_plan(pattern: SparsityPattern, method: str) -> Plan:
    if method == "columns":
        return _plan(pattern, "forward")
    coloring = ordering.symmetric_coloring(pattern, "acyclic" if method == "acyclic" else "star")
    colors = coloring.colors.long()
    rows, columns = _places(pattern)
    if method == "acyclic":
        arrays = (pattern.crow_indices, pattern.col_indices, pattern.transpose_permutation, coloring.colors)
        ptr, idx, equation, unknown = (
            pattern._tensor(a) for a in _analysis.substitution(*(as_numpy(a) for a in arrays))
        )
        at, number = equation.long(), len(equation)
        plan = make_plan(coloring, colors[columns[at]], rows[at], pattern.shape)
        triangle = SparsityPattern(ptr, idx, (number, number))
        return plan._replace(triangle=triangle, unknown=unknown.long())
    # Where row i has no other entry in a column of the color of j, the product for this color shows (i, j) in
    # row i. Else i is the center of a star of these two colors, and that for the color of i shows (j, i) in
    # row j.
    _, of, number = torch.unique(
        rows * coloring.count + colors[columns], return_inverse=True, return_counts=True
    )
    alone = number[of] == 1
    color = torch.where(alone, colors[columns], colors[rows])
    return make_plan(coloring, color, torch.where(alone, rows, columns), pattern.shape)


def make_plan(coloring: ordering.Coloring, color: Tensor, element: Tensor, shape: tuple[int, int]) -> Plan:
    """Each value is that `element` of the derivative of that `color`, an array of `shape` times a seed."""
    length, width = shape
    count = coloring.count if len(color) else 0  # no values, no derivatives
    group = max(1, min(-(-len(color) // max(length, width, 1)), _ELEMENTS // max(length, width, 1)))
    positions, order, ptr = color * length + element, None, (0, len(color))
    index = torch.int32 if count * length < 2**31 else torch.int64
    if count * length > 4 * len(color):
        by_group = (color // group).argsort(stable=True)
        sizes = torch.bincount(color // group, minlength=-(-count // group))
        ptr = (0, *sizes.cumsum(0).tolist())
        positions = positions[by_group]
        order = torch.empty_like(by_group)
        order[by_group] = torch.arange(len(color), device=color.device)
        order = order.to(index)
    return Plan(coloring.colors, count, length, group, positions.to(index), ptr, order)


def compressed_values(
    function: str, derivative: Callable[[Tensor], Tensor], plan: Plan, like: Tensor, by_vmap: bool = True
) -> Tensor:
    """The values, shape (nnz,), for the linear function `derivative` of seeds."""

    def together(seeds: Tensor) -> Tensor:
        if len(seeds) == 1:
            return derivative(seeds[0])[None]
        return torch.vmap(derivative)(seeds) if by_vmap else torch.stack([derivative(s) for s in seeds])

    parts, whole = [], None
    for g, first in enumerate(range(0, plan.count, plan.group)):
        last = min(first + plan.group, plan.count)
        some = torch.arange(first, last, device=like.device, dtype=plan.colors.dtype)
        seeds = (plan.colors == some[:, None]).to(like.dtype)
        if torch._C._are_functorch_transforms_active() and seeds.shape[1] == like.numel():
            # Mapped where u is: in forward mode f may write a mapped tangent into a copy of u.
            seeds = seeds + torch.zeros_like(like).reshape(-1)
        shown = together(seeds)
        if shown.shape[1] != plan.length:
            raise ValueError(
                f"{function}: the size of f(u) must not depend on values of u, but was {plan.length} at the "
                f"first call and is {shown.shape[1]} now; use torch.where in place of masks as indices"
            )
        if plan.order is not None:
            positions = plan.positions[plan.ptr[g] : plan.ptr[g + 1]] - first * plan.length
            shown = shown.reshape(-1).index_select(0, positions)
        elif plan.group < plan.count and not tracked(shown):  # no second copy of all parts
            whole = shown.new_empty(plan.count, plan.length) if whole is None else whole
            whole[first:last] = shown
            continue
        parts.append(shown)
    if plan.count == 0:
        return like.new_zeros(0)
    if whole is None:
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        parts.clear()
    values = whole.reshape(-1).index_select(0, plan.positions if plan.order is None else plan.order)
    if plan.triangle is None:
        return values
    ones = values.new_ones(plan.triangle.nnz)
    return sptrsv(CSR(ones, plan.triangle), values, unit_diagonal=True)[plan.unknown]
