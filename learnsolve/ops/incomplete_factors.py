"""Incomplete factors and their derivatives, to any order: the core of `ic`, `mic` and `ilu`, and of `ict`
and `ilut` on the patterns that they choose.

The factors f of the values a solve F(f) = a, one quadratic equation per entry that is read
(csrc/kernels/incomplete.h). With B the symmetric bilinear form of F's quadratic part, J(f) z = E z + B(f, z)
its derivative and C(x, .) the transpose of B(x, .), four maps are closed under differentiation:

    factor              df = J^-1 da
    tangent  z = J^-1 v     dz = J^-1 (dv - B(df, z))
    adjoint  w = J^-T g     dw = J^-T (dg - C(df, w))
    product  B(x, z), C(x, w), which are linear in each argument.

All follow from one trilinear form <w, B(x, z)> = <C(x, w), z> = <C(z, w), x>, which gives the backwards. Each
is one compiled pass over a plan of the pattern. Operands are (size) or (B, size), all with the same batch.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnsolve import (
    _analysis,
    _library,  # noqa: F401  (registers torch.ops.learnsolve)
)
from learnsolve.matrix import device_analysis
from learnsolve.matrix.pattern import SparsityPattern, to_numpy
from learnsolve.ops.arithmetic import every_one, one_each
from learnsolve.ops.autograd import LinearSolve, Multilinear, Nestable, Operation, dispatch
from learnsolve.ops.indexing import diagonal_mask
from learnsolve.ops.products import product
from learnsolve.ops.triangular import triangle_pattern

_raw_factor = torch.ops.learnsolve.csr_incomplete_factor.default
_raw_tangent = torch.ops.learnsolve.csr_incomplete_tangent.default
_raw_adjoint = torch.ops.learnsolve.csr_incomplete_adjoint.default
_raw_product = torch.ops.learnsolve.csr_incomplete_product.default
_raw_product_adjoint = torch.ops.learnsolve.csr_incomplete_product_adjoint.default

PLAN_LIMIT = 2**33  # maximum bytes for the products of one plan

# `Factors` of csrc/analysis/factors.h. A kind is the name of the public function, for errors, and after a
# slash the elimination, if it has another name: "ict/ic", once the pattern is chosen.
_FACTORS = {"ilu": 0, "ic": 1, "mic": 2, "relaxed": 3}
# Complete fill, without a plan of the products: a pattern of L, or a symmetric pattern of L and U.
_COMPLETE = ("complete", "complete lu")
REMEDY = '. Add a shift: shift=1e-2, say, or on_breakdown="shift" to search for one'


class Plan(NamedTuple):
    """The elimination on a pattern. Its factors are on the triangles of the pattern (`triangle_pattern`)."""

    elimination: tuple[tuple[Tensor, ...], bool]  # arguments of the operators (csrc/ops/schema.cpp)
    size: int  # number of values: A's and, for "relaxed", those added by `append_omega`
    crow: Tensor | None = None  # row starts of these values, if not the pattern's


def elimination_plan(pattern: SparsityPattern, factors: str) -> Plan:
    """For `pattern._plan_once`. 16 bytes per entry of A that is read, 8 per product of the elimination."""
    arrays = (
        to_numpy(pattern.crow_indices),
        to_numpy(pattern.col_indices),
        to_numpy(pattern.diagonal_positions),
    )
    largest = torch.iinfo(torch.int32).max
    enough = min(largest - 1, PLAN_LIMIT // 8)
    products = _analysis.elimination_products(*arrays, _FACTORS[factors], enough)
    narrow = max(products, pattern.nnz + pattern.shape[0]) < largest
    needed = products * (8 if narrow else 16)
    if needed > PLAN_LIMIT:
        function = "mic" if factors == "relaxed" else factors
        raise ValueError(
            f"{function}: the elimination on this pattern has {products} products, whose plan would take "
            f"{needed / 2**30:.3g} GiB, more than learnsolve.ops.incomplete_factors.PLAN_LIMIT = "
            f"{PLAN_LIMIT / 2**30:.3g} GiB. Drop small entries of A first, or raise the limit"
        )
    made = _analysis.elimination_plan(*arrays, _FACTORS[factors], narrow, products)
    by_level: tuple[Tensor, ...] = ()
    if device_analysis.here(pattern.crow_indices):
        made, levels, uses = _sort_by_level(*made)
        by_level = (torch.from_numpy(levels), *(pattern._tensor(a) for a in (levels, *uses)))
    plan = [pattern._tensor(a) for a in made]
    size, crow = pattern.nnz, None
    if factors == "relaxed":
        size += len(made[0]) // 2 + 1
        crow = pattern._tensor(np.append(arrays[0], arrays[0].dtype.type(size)))
    sizes = torch.tensor((len(made[0]) + len(made[5]), size), device="cpu")
    return Plan(((*plan, sizes, *by_level), factors != "ilu"), size, crow)


def _sort_by_level(order, source, pivot, ptr, pairs, units):
    """The plan with its steps sorted by level, the starts of the levels, and the uses of each entry
    (csrc/kernels/factors.cuh)."""
    entries = len(order) + len(units)
    level = _analysis.elimination_levels(order, pivot, ptr, pairs, entries)
    steps = np.argsort(level, kind="stable")
    levels = np.concatenate(([0], np.cumsum(np.bincount(level)))) if len(level) else np.zeros(1)
    lengths = np.diff(ptr)[steps]
    new_ptr = np.concatenate(([0], np.cumsum(lengths)))
    places = np.arange(new_ptr[-1]) + np.repeat(ptr[:-1][steps] - new_ptr[:-1], lengths)
    order, source, pivot = order[steps], source[steps], pivot[steps]
    pairs = pairs.reshape(-1, 2)[places]

    at, divided = np.repeat(source, lengths), (pivot >= 0) & (pivot != order)
    used = np.concatenate((pairs[:, 0], pairs[:, 1], pivot[divided]))
    uses = np.stack(
        (
            np.concatenate((at, at, source[divided])),
            np.concatenate((pairs[:, 1], pairs[:, 0], order[divided])),
        ),
        1,
    )[np.argsort(used, kind="stable")]
    uses_ptr = np.concatenate(([0], np.cumsum(np.bincount(used, minlength=entries))))
    index = order.dtype
    plan = (order, source, pivot, new_ptr.astype(index), pairs.reshape(-1), units)
    return plan, levels.astype(np.int64), (uses_ptr.astype(index), np.ascontiguousarray(uses).reshape(-1))


def complete_plan(pattern: SparsityPattern, factors: str) -> Plan:
    """A plan for a `pattern` with all fill, of L or, symmetric, of L and U: 12 bytes per entry of L."""
    lower = triangle_pattern(pattern, "lower")
    n, ptr, row = lower.shape[0], to_numpy(lower.T.crow_indices), to_numpy(lower.T.col_indices)
    length = np.diff(ptr)
    # Columns j and j + 1 belong to the same supernode if the first entry below the diagonal of j is in row j
    # + 1, and column j + 1 has all the others.
    joined = length[:-1] == length[1:] + 1
    joined[joined] = row[ptr[:-2][joined] + 1] == np.flatnonzero(joined) + 1
    ends = np.append(np.flatnonzero(~joined) + 1, n) if n else np.empty(0, int)
    following = np.repeat(ends, np.diff(ends, prepend=0)).astype(row.dtype)
    arrays = (lower.crow_indices, lower.col_indices, lower._inverse_permutation)
    arrays += (lower.T.crow_indices, lower.T.col_indices, pattern._tensor(following))
    return Plan((tuple(t.detach() for t in arrays), factors == "complete"), pattern.nnz)


def factor_plan(pattern: SparsityPattern, kind: str) -> Plan:
    factors = kind.rpartition("/")[2]
    return pattern._plan_once(complete_plan if factors in _COMPLETE else elimination_plan, factors)


def append_omega(values: Tensor, omega: Tensor, pattern: SparsityPattern) -> Tensor:
    """The values that the relaxed elimination reads: A's values, -omega, and a zero per entry of L, whose
    multiples by omega are additional unknowns. So omega has derivatives like any value."""
    zeros = values.new_zeros(*values.shape[:-1], triangle_pattern(pattern, "lower").nnz)
    return torch.cat((values, -omega.unsqueeze(-1), zeros), -1)


def shift_diagonal(values: Tensor, shift: Tensor, pattern: SparsityPattern) -> Tensor:
    """The same values for A + shift diag(A)."""
    on = torch.nn.functional.pad(diagonal_mask(pattern), (0, values.shape[-1] - pattern.nnz))
    return torch.where(on, values * (1 + shift.unsqueeze(-1)), values)


class Breakdown(ValueError):
    """In a complete factorization: row in elimination order, pivot, index of the matrix."""


class Unstable(ValueError):
    """Complete factors without row exchanges are unstable."""


def breakdown_message(kind: str, row: int, pivot: float, matrix: int | None) -> str:
    function, _, factors = kind.partition("/")
    what = "nonzero" if (factors or function) == "ilu" else "positive"
    batch = "" if matrix is None else f" of matrix {matrix} of the batch (counted through all its axes)"
    return (
        f"{function}: every pivot must be {what} and finite, but the pivot of row {row}{batch} is {pivot:.6g}"
    )


def _factor_or_raise(values: Tensor, pattern: SparsityPattern, kind: str) -> Tensor:
    plan = factor_plan(pattern, kind)
    traced = torch.compiler.is_dynamo_compiling()
    crow = pattern.crow_indices if plan.crow is None else plan.crow
    f, breakdown = _raw_factor(*plan.elimination, crow, values, traced)
    if traced and not f.is_cuda:
        return f
    if f.is_cuda:  # a check would synchronize the device: missing factors are NaN
        return torch.where(breakdown[..., :1] >= 0, torch.nan, f)
    for matrix, (row, pivot) in enumerate(breakdown.reshape(-1, 2).tolist()):
        if row >= 0 and kind.rpartition("/")[2] in _COMPLETE:
            raise Breakdown(int(row), pivot, matrix if values.dim() > 1 else None)
        if row >= 0:
            message = breakdown_message(kind, int(row), pivot, matrix if values.dim() > 1 else None)
            raise ValueError(message + REMEDY)
    if f.is_cpu and not f.sum().isfinite():  # the sum may overflow although every entry is finite
        _finite(f, pattern, kind)
    if kind.endswith("/complete lu"):
        _warn_of_growth(values, f, pattern, kind)
    return f


def _warn_of_growth(values: Tensor, f: Tensor, pattern: SparsityPattern, kind: str) -> None:
    """The error of L U is the unit roundoff times |L| |U|, which is as small as A with row exchanges."""
    if values.numel() == 0:
        return
    L, U = (triangle_pattern(pattern, side) for side in ("lower", "upper"))
    sums = values.new_ones((*values.shape[:-1], pattern.shape[0], 1))
    size = product(values.abs(), sums, pattern, False).amax((-2, -1))
    lower, upper = f.abs().split([L.nnz, U.nnz], -1)
    growth = float((product(lower, product(upper, sums, U, False), L, False).amax((-2, -1)) / size).max())
    if not growth * torch.finfo(f.dtype).eps ** 0.5 < 1:
        if kind.startswith("factorize/"):  # has another way
            raise Unstable
        warnings.warn(
            f"{kind.partition('/')[0]}: elimination without exchanges of rows is unstable here: |L| |U| is "
            f"{growth:.3g} times as large as A, so is the error, in units of the roundoff. Pass another "
            "ordering, scale A, or solve with spsolve, which exchanges rows",
            RuntimeWarning,
            stacklevel=2,
        )


def _finite(f: Tensor, pattern: SparsityPattern, kind: str) -> None:
    """Check each entry of the factors: it can overflow, or be NaN initially, without affecting a pivot."""
    bad = (~f.isfinite()).nonzero()
    if len(bad) == 0:
        return
    at, factor, name = int(bad[0, -1]), triangle_pattern(pattern, "lower"), "L"
    if at >= factor.nnz:
        at, factor, name = at - factor.nnz, triangle_pattern(pattern, "upper"), "U"
    row, column = int(factor.row_indices[at]), int(factor.col_indices[at])
    batch = f" of matrix {int(bad[0, 0])} of the batch (counted through all its axes)" if f.dim() > 1 else ""
    raise ValueError(
        f"{kind.partition('/')[0]}: every entry of the factors must be finite, but the entry of {name} in "
        f"row {row}, column {column}{batch} is {float(f[tuple(bad[0])]):.6g}. Scale the rows and columns of "
        "A first"
    )


def factor(values: Tensor, pattern: SparsityPattern, kind: str) -> Tensor:
    """The factors of a matrix (nnz) or a batch (B, nnz): values of L, for LU followed by those of U, for
    "relaxed" by auxiliary ones."""
    return dispatch(_Factor, (values,), pattern, kind)


class _Map(Operation):
    @classmethod
    def vmap(cls, info, in_dims, *inputs):
        """Merges the mapped axis and the batch axes of the operands into one."""
        given = list(zip(inputs[: cls.operands], in_dims, strict=False))
        operands = [t.unsqueeze(0) if dim is None else t.movedim(dim, 0) for t, dim in given]
        size, batch = info.batch_size, max((t.shape[1:-1] for t in operands), key=len)
        flat = []
        for t in operands:
            if batch:
                t = t.expand(size, *batch, t.shape[-1]).reshape(size * batch.numel(), t.shape[-1])
            flat.append(t.expand(size * batch.numel(), t.shape[-1]))
        out = dispatch(cls, tuple(flat), *inputs[cls.operands :])
        return out.reshape(size, *batch, *out.shape[1:]), 0


class _Factor(_Map):
    forward = staticmethod(_factor_or_raise)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.constants = inputs[1:]

    @staticmethod
    def backward(ctx, g):
        (f,) = ctx.saved_tensors
        return dispatch(_Adjoint, (f, g), *ctx.constants), None, None

    @staticmethod
    def jvp(ctx, tv, *_):
        (f,) = ctx.saved_tensors
        return dispatch(_Tangent, (f, tv), *ctx.constants)


class _Tangent(_Map, LinearSolve):
    @staticmethod
    def forward(f, v, pattern, kind):
        return _raw_tangent(*factor_plan(pattern, kind).elimination, f, v)

    @staticmethod
    def backward(ctx, g):
        f, z = ctx.saved_tensors
        w = dispatch(_Adjoint, (f, g), *ctx.constants)
        gf = -dispatch(_ProductAdjoint, (z, w), *ctx.constants) if ctx.needs_input_grad[0] else None
        return gf, w, None, None

    @staticmethod
    def times(f, z, *constants):
        return dispatch(_Product, (f, z), *constants)


class _Adjoint(_Map, LinearSolve):
    @staticmethod
    def forward(f, g, pattern, kind):
        plan = factor_plan(pattern, kind)
        return _raw_adjoint(*plan.elimination, f, g, plan.size)

    @staticmethod
    def backward(ctx, h):
        f, w = ctx.saved_tensors
        u = dispatch(_Tangent, (f, h), *ctx.constants)
        gf = -dispatch(_ProductAdjoint, (u, w), *ctx.constants) if ctx.needs_input_grad[0] else None
        return gf, u, None, None

    @staticmethod
    def times(f, w, *constants):
        return dispatch(_ProductAdjoint, (f, w), *constants)


class _Product(_Map, Multilinear):
    """B(x, z)"""

    operands = 2

    @staticmethod
    def forward(x, z, pattern, kind):
        plan = factor_plan(pattern, kind)
        return _raw_product(*plan.elimination, x, z, plan.size)

    @staticmethod
    def backward(ctx, h):
        x, z = ctx.saved_tensors
        need_x, need_z = ctx.needs_input_grad[:2]
        gx = dispatch(_ProductAdjoint, (z, h), *ctx.constants) if need_x else None
        gz = dispatch(_ProductAdjoint, (x, h), *ctx.constants) if need_z else None
        return gx, gz, None, None


class _ProductAdjoint(_Map, Multilinear):
    """C(x, w)"""

    operands = 2

    @staticmethod
    def forward(x, w, pattern, kind):
        return _raw_product_adjoint(*factor_plan(pattern, kind).elimination, x, w)

    @staticmethod
    def backward(ctx, h):
        x, w = ctx.saved_tensors
        need_x, need_w = ctx.needs_input_grad[:2]
        gx = dispatch(_ProductAdjoint, (h, w), *ctx.constants) if need_x else None
        gw = dispatch(_Product, (x, h), *ctx.constants) if need_w else None
        return gx, gw, None, None


_FIRST_SHIFT, _TRIES = 1e-3, 30


class Search(Nestable):
    """The first shift for which the factors exist, of shift, 1e-3 (or twice the shift, if that is larger),
    its double, ...; values (B, nnz), shift (B). A constant to every derivative."""

    @staticmethod
    def forward(values, shift, pattern, kind):
        return _search(values, shift, pattern, kind)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx, *_):  # type: ignore[override]
        return None, None, None, None

    @staticmethod
    def jvp(ctx, *_):  # type: ignore[override]
        return None

    @staticmethod
    def vmap(info, in_dims, values, shift, pattern, kind):
        size = info.batch_size
        v, s = (
            t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((values, shift), in_dims[:2], strict=True)
        )
        found = Search.apply(v.reshape(-1, v.shape[-1]), s.reshape(-1), pattern, kind)
        return found.reshape(size, -1), 0  # type: ignore[union-attr]


def _search(values: Tensor, shift: Tensor, pattern: SparsityPattern, kind: str) -> Tensor:
    plan = factor_plan(pattern, kind)
    crow = pattern.crow_indices if plan.crow is None else plan.crow
    shift, open_ = shift.clone(), torch.arange(len(shift), device=shift.device)
    breakdown = shift.new_empty(0, 2)
    for attempt in range(_TRIES + 1):
        if attempt:
            shift[open_] = (2 * shift[open_]).clamp(min=_FIRST_SHIFT)
        v = shift_diagonal(values[open_], shift[open_], pattern)
        breakdown = _raw_factor(*plan.elimination, crow, v, False)[1]
        failed = breakdown[:, 0] >= 0
        open_, breakdown = open_[failed], breakdown[failed]
        if len(open_) == 0:
            break
    else:
        at, (row, pivot) = int(open_[0]), breakdown[0].tolist()
        message = breakdown_message(kind, int(row), pivot, at if len(shift) > 1 else None)
        raise breakdown_error(message, float(shift[at]))
    if attempt:
        warn(kind.partition("/")[0], float(shift.max()), attempt)
    return shift


def attempts(shift: float) -> Iterator[float]:
    """The shifts to try, in order."""
    for _ in range(_TRIES + 1):
        yield shift
        shift = max(2 * shift, _FIRST_SHIFT)


def breakdown_error(message: str, last: float) -> ValueError:
    return ValueError(
        f"{message}, even with shift {last:.3g} (the last of {_TRIES} tries). A shift relative to the "
        "diagonal does not help where that is zero or negative: permute the rows, or add a multiple of the "
        "identity"
    )


def warn(kind: str, largest: float, failed: int) -> None:
    times = "1 factorization" if failed == 1 else f"{failed} factorizations"
    warnings.warn(
        f"{kind}: a pivot broke down in {times}, until the diagonal was shifted by {largest:.3g} times "
        "itself (result.shift). Pass that shift to do without them",
        RuntimeWarning,
        stacklevel=3,
    )


def missing_diagonal(function: str, pattern: SparsityPattern, name: str) -> None:
    row = pattern._missing_diagonal
    if row >= 0:
        zero = " (an explicit zero will do)" if name == "A" else ""
        raise ValueError(
            f"{function}: {name} must have an entry on its diagonal in every row, row {row} has none. "
            f"Permute the rows, or add the entry{zero}"
        )


def expand_shift(function: str, shift: float | Tensor, values: Tensor) -> Tensor:
    """`shift` for each matrix of the batch."""
    held, rule = lambda t: (t >= 0) & (t < float("inf")), "be finite and not negative"
    return _expand_parameter(function, "shift", shift, values, held, rule)


def expand_omega(function: str, omega: float | Tensor, values: Tensor) -> Tensor:
    """`omega` for each matrix of the batch."""
    held, rule = lambda t: (t >= 0) & (t <= 1), "be between 0 and 1"
    return _expand_parameter(function, "omega", omega, values, held, rule)


def _expand_parameter(
    function: str, name: str, given: float | Tensor, values: Tensor, held: Callable[[Any], Any], rule: str
) -> Tensor:
    value = one_each(function, name, given, values)
    every_one(function, name, value, held, rule)
    if isinstance(value, Tensor):
        return value.expand(values.shape[:-1])
    return torch.full(values.shape[:-1], value, dtype=values.dtype, device=values.device)
