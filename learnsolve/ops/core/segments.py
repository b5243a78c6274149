"""The segments of a pattern, its rows or its columns, and code shared by the operations on them."""

from typing import Any

import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core import complex
from learnsolve.ops.core.autograd import Multilinear, dispatch
from learnsolve.ops.core.product import product, sampled
from learnsolve.ops.core.selection import used_columns

_raw = torch.ops.learnsolve.csr_spmm.default

LARGE = 32 << 20  # bytes


def check(
    function: str,
    name: str,
    t: Tensor,
    pattern: SparsityPattern,
    by: str,
    *,
    entries: bool,
    or_complex: bool = False,
) -> None:
    """Check that `t` holds features of the entries of `pattern`, or of its rows or columns (`by`)."""
    checks.tensor(function, name, t)
    checks.dtype(function, name, t, or_complex)
    if not isinstance(pattern, SparsityPattern):
        raise TypeError(
            f"{function}: pattern must be a SparsityPattern, got {type(pattern).__name__}; a CSR has one, "
            "A.pattern"
        )
    if t.device != pattern.device:
        raise TypeError(
            f"{function}: {name} is on {t.device}, the pattern on {pattern.device}; move one with .to()"
        )
    checks.one_of(function, "by", by, ("row", "column"))
    side = by == "column"
    size, what = (pattern.nnz, "nnz") if entries else (pattern.shape[side], f"pattern.shape[{int(side)}]")
    if t.dim() == 0 or t.shape[0 if t.dim() == 1 else -2] != size:
        raise ValueError(
            f"{function}: {name} must have shape ({what} = {size},) or (..., {size}, f), got {tuple(t.shape)}"
        )


def summed(e: Tensor, pattern: SparsityPattern, by: str) -> Tensor:
    """Sums over the segments. A single feature is summed as values of the pattern, without indices if rows
    repeat, as on a grid."""
    if e.is_complex():
        return complex.columns(lambda e: summed(e, pattern, by), e)
    if e.dim() == 1:
        pattern = used_columns(pattern) if by == "row" else pattern
        return product(e, _ones(pattern.shape[by == "row"], e), pattern, by == "column")
    return dispatch(_Sums, (e,), pattern, by == "column")


def spread(x: Tensor, pattern: SparsityPattern, by: str) -> Tensor:
    """For each entry the features of its segment: the adjoint of `summed`."""
    if x.is_complex():
        return complex.columns(lambda x: spread(x, pattern, by), x)
    if x.dim() == 1:
        pattern = used_columns(pattern) if by == "row" else pattern
        ones = _ones(pattern.shape[by == "row"], x)
        return sampled(x, ones, pattern) if by == "row" else sampled(ones, x, pattern)
    return dispatch(_Spread, (x,), pattern, by == "column")


class _Sums(Multilinear):
    """A product with the 0/1 matrix (segments x entries)."""

    @staticmethod
    def forward(e, pattern, columns):
        S = pattern._planned(_by_columns if columns else _by_rows)
        y = _raw(*S._structure(False), _ones(S.nnz, e), flat(e))
        return y.reshape((*e.shape[:-2], *y.shape[-2:]))

    @staticmethod
    def backward(ctx, g):
        return dispatch(_Spread, (g,), *ctx.constants), None, None

    @classmethod
    def vmap(cls, info, in_dims, e, *constants):
        return mapped(cls, info, in_dims, (e,), *constants)


class _Spread(Multilinear):
    """A product with its transpose, for which torch's copy of rows is faster, except for results so large
    that our operators request huge pages (csrc/ops/tensors.h), which torch does not."""

    @staticmethod
    def forward(x, pattern, columns):
        if x.is_cpu and pattern.nnz * x.shape[:-2].numel() * x.shape[-1] * x.itemsize >= LARGE:
            S = pattern._planned(_by_columns if columns else _by_rows)
            y = _raw(*S._structure(True), _ones(S.nnz, x), flat(x))
            return y.reshape((*x.shape[:-2], *y.shape[-2:]))
        return x.index_select(-2, pattern.col_indices if columns else pattern.row_indices)

    @staticmethod
    def backward(ctx, g):
        return dispatch(_Sums, (g,), *ctx.constants), None, None

    @classmethod
    def vmap(cls, info, in_dims, x, *constants):
        return mapped(cls, info, in_dims, (x,), *constants)


def sum_values(e: Tensor, pattern: SparsityPattern, by: str) -> Tensor:
    """Sums of (..., nnz) over the segments: each feature as values of the pattern."""
    return dispatch(_SumsOfValues, (e,), pattern, by == "column")


def spread_values(x: Tensor, pattern: SparsityPattern, by: str) -> Tensor:
    """For each entry the value of its segment, (..., nnz): the adjoint of `sum_values`."""
    return dispatch(_SpreadOfValues, (x,), pattern, by == "column")


class _SumsOfValues(Multilinear):
    @staticmethod
    def forward(e, pattern, columns):
        pattern = pattern if columns else used_columns(pattern)
        ones = _ones(pattern.shape[not columns], e).unsqueeze(-1)
        values = e.reshape(-1, pattern.nnz)
        return _raw(*pattern._structure(columns), values, ones).reshape(*e.shape[:-1], -1)

    @staticmethod
    def backward(ctx, g):
        return dispatch(_SpreadOfValues, (g,), *ctx.constants), None, None

    @classmethod
    def vmap(cls, info, in_dims, e, *constants):
        return mapped(cls, info, in_dims, (e,), *constants)


class _SpreadOfValues(Multilinear):
    @staticmethod
    def forward(x, pattern, columns):
        flat = x.reshape(-1, x.shape[-1])  # torch has a fast path for the last of two axes
        chosen = flat.index_select(1, pattern.col_indices if columns else pattern.row_indices)
        return chosen.reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, g):
        return dispatch(_SumsOfValues, (g,), *ctx.constants), None, None

    @classmethod
    def vmap(cls, info, in_dims, x, *constants):
        return mapped(cls, info, in_dims, (x,), *constants)


def at_ends(ends: Tensor, pattern: SparsityPattern) -> Tensor:
    """ends[..., 2i, :] + ends[..., 2j + 1, :] for each entry (i, j): one pass instead of three."""
    S = pattern._planned(_both_ends)
    return product(_ones(S.nnz, ends), ends, S, False)


def sums_at_ends(e: Tensor, pattern: SparsityPattern) -> Tensor:
    """The adjoint of `at_ends`: in row 2i the sum of row i, in row 2j + 1 the sum of column j."""
    S = pattern._planned(_both_ends)
    return product(_ones(S.nnz, e), e, S, True)


def of_rows_and_columns(e: Tensor, pattern: SparsityPattern, mean: bool) -> Tensor:
    """Sums or means of row i and of column i side by side, (..., n, 2f), for a square pattern."""
    S = pattern._planned(_both_ends)
    values = pattern._planned(_shares_of_both).to(e.dtype) if mean else _ones(S.nnz, e)
    return product(values, e, S, True).reshape(*e.shape[:-2], pattern.shape[0], 2 * e.shape[-1])


def _ones(n: int, like: Tensor) -> Tensor:
    return torch.ones(n, dtype=like.dtype, device=like.device)


def _by_rows(P: SparsityPattern) -> SparsityPattern:
    entries = torch.arange(P.nnz, dtype=P.dtype, device=P.device)
    return SparsityPattern._trusted(P.crow_indices, entries, (P.shape[0], P.nnz))


def _by_columns(P: SparsityPattern) -> SparsityPattern:
    transposed, entries = P._transposed()  # entries of a column are in the order of its rows: sorted
    return SparsityPattern._trusted(transposed.crow_indices, entries, (P.shape[1], P.nnz))


def _both_ends(P: SparsityPattern) -> SparsityPattern:
    narrow = P.dtype == torch.int32 and 2 * max(*P.shape, P.nnz) <= torch.iinfo(torch.int32).max
    dtype = torch.int32 if narrow else torch.int64
    pairs = torch.stack((2 * P.row_indices.to(dtype), 2 * P.col_indices.to(dtype) + 1), 1).sort(1).values
    crow = torch.arange(0, 2 * P.nnz + 1, 2, dtype=dtype, device=P.device)
    return SparsityPattern._trusted(crow, pairs.reshape(-1), (P.nnz, 2 * max(P.shape)))


def lengths(pattern: SparsityPattern, by: str) -> Tensor:
    """The number of entries of each segment, at least 1, shape (segments, 1)."""
    return pattern._planned(_row_lengths if by == "row" else _column_lengths)


def _shares_of_both(P: SparsityPattern) -> Tensor:
    """For each entry of `_both_ends` 1 / the length of its segment."""
    both = torch.cat((lengths(P, "row"), lengths(P, "column")), 1).reshape(-1)
    return both.double().reciprocal()[P._planned(_both_ends).col_indices.long()]


def _row_lengths(P: SparsityPattern) -> Tensor:
    return P.crow_indices.diff().clamp(min=1).unsqueeze(-1)


def _column_lengths(P: SparsityPattern) -> Tensor:
    return _row_lengths(P.T)


def flat(t: Tensor) -> Tensor:
    """(n, f) or (batch, n, f), for the operators."""
    return t if t.dim() <= 3 else t.reshape(t.shape[:-2].numel(), *t.shape[-2:])


def mapped(operation: Any, info: Any, in_dims: tuple, tensors: tuple, *constants: Any) -> tuple:
    """A vmap rule: the operation on tensors whose first axis is the mapped one."""
    first = (
        t.expand((info.batch_size, *t.shape)) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, in_dims, strict=False)
    )
    out = dispatch(operation, tuple(first), *constants)
    return out, (0, 0) if isinstance(out, tuple) else 0
