"""Sparse LU factors on the host, by SciPy's SuperLU: made once, and looked up by the matrix values.

The CSR arrays of A are the CSC arrays of A^T, so SuperLU factors A^T without any conversion, and a solve with
A is the transposed solve of what was factored.

A factor is looked up by comparing values, not by the identity of a tensor: transformations of torch pass on
the same values in other tensors, and values that were changed unnoticed by torch do not match an old factor.
A comparison costs O(nnz), less than any solve.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve import _library  # noqa: F401  (the namespace of the operators)
from learnsolve.matrix.interning import Recent
from learnsolve.matrix.plain import plain_tensors
from learnsolve.ops.core.singular import no_matching, sums_to_zero, why_singular

# SuperLU counts in C ints.
_LARGEST = int(np.iinfo(np.intc).max)


class LU(NamedTuple):
    """SuperLU's factors of the transpose of a matrix."""

    transposed: scipy.sparse.csc_array
    largest: float  # of the values, in size
    factors: Any


class Factors:
    """Factors of the matrices that occur in one solve and its derivatives of any order.

    `function` is the public function that messages name.
    """

    __slots__ = ("__weakref__", "_factored", "function")

    def __init__(self, function: str):
        self.function = function
        self._factored: list[tuple[tuple[Tensor, Tensor, Tensor], list[LU]]] = []

    def find(self, crow: Tensor, col: Tensor, values: Tensor) -> list[LU] | None:
        """Factors of `values`, (nnz,) or (B, nnz) on the host, if there are some: one for each matrix."""
        matrix = (values, col, crow)
        for factored, factors in self._factored:
            if all(a is b or _same(a, b) for a, b in zip(factored, matrix, strict=True)):
                return factors
        return None

    def of(self, crow: Tensor, col: Tensor, values: Tensor) -> list[LU]:
        values = _host(values)
        factors = self.find(crow, col, values)
        if factors is None:
            with plain_tensors():
                values = values.clone()
            factors = _factor(self.function, crow, col, values)
            self._factored.append(((values, col, crow), factors))
        return factors

    @property
    def nnz(self) -> int:
        """Entries of all factors, L and U."""
        return sum(lu.factors.nnz for _, factors in self._factored for lu in factors)

    def bytes(self) -> int:
        """Of the entries of all factors, and of their indices."""
        index = np.intc().itemsize
        return sum(
            (m[0].element_size() + index) * lu.factors.nnz for m, factors in self._factored for lu in factors
        )

    def share(self) -> None:
        """Let calls through the operator find these factors while a reference to them exists."""
        with _recent.lock:
            _recent.shared.add(self)


def solve(factors: Factors, crow: Tensor, col: Tensor, values: Tensor, b: Tensor, transpose: bool) -> Tensor:
    """A^-1 b, or A^-T b, for values (nnz,) with b (n,) or (n, k), or (B, nnz) with (B, n, k)."""
    return _solve(factors.function, factors.of(crow, col, values), b, transpose)


def _solve(function: str, factors: list[LU], b: Tensor, transpose: bool) -> Tensor:
    rhs = _host(b).numpy()
    if rhs.size == 0:
        x = np.empty_like(rhs)
    elif rhs.ndim < 3:
        x = _solve_one(function, factors[0], rhs, transpose)
    else:
        x = np.stack([_solve_one(function, *pair, transpose) for pair in zip(factors, rhs, strict=True)])
    return torch.from_numpy(np.ascontiguousarray(x)).to(b.device)


def _solve_one(function: str, lu: LU, b: np.ndarray, transpose: bool) -> np.ndarray:
    x = lu.factors.solve(b, "N" if transpose else "T")
    # `not <=` is true for NaN too.
    if not _largest(x) * lu.largest <= 0.01 * _largest(b) / np.finfo(b.dtype).eps:
        _judge(function, lu.transposed.T, x, b, transpose)
    return x


def _judge(function: str, S: scipy.sparse.csr_array, x: np.ndarray, b: np.ndarray, transpose: bool) -> None:
    """Refuse a solution that is not finite where it should be; warn of one that solves nothing."""
    usable = np.isfinite(b).all(0)
    if (usable & ~np.isfinite(x).all(0)).any():
        raise ValueError(
            f"{function}: the solution is not finite, though A and the right-hand side are: A is singular to "
            f"working precision, or the numbers leave the range of {b.dtype}; rescale the equations, use "
            "float64, or add a shift to the diagonal of A"
        )
    # Is rounding in A x about as large as b? Each equation counts relative to its largest coefficient.
    # A singular matrix whose last pivot is rounding gives 0.01 to 30 (Laplacians of random weights), others
    # come near only at condition numbers beyond what the precision holds.
    size = abs(S.T.tocsr() if transpose else S)
    with np.errstate(all="ignore"):
        scale = 1 / size.max(1).toarray()
        if b.ndim == 2:
            scale = scale[:, None]
        rounding = np.finfo(b.dtype).eps * (scale * (size @ np.abs(x))).max(0)
        useless = rounding >= 0.1 * (scale * np.abs(b)).max(0)
    if (usable & useless).any():
        warnings.warn(
            f"{function}: A is nearly singular{sums_to_zero(S)}: rounding errors in A x are about as large "
            "as the right-hand side; fix one of the unknowns that are not determined, add a shift to the "
            "diagonal, or use float64",
            RuntimeWarning,
            stacklevel=2,
        )


def _largest(a: np.ndarray) -> float:
    return max(a.max(), -a.min()) if a.size else 0.0


def _factor(function: str, crow: Tensor, col: Tensor, values: Tensor) -> list[LU]:
    n = len(crow) - 1
    if max(n, len(col)) > _LARGEST:
        raise ValueError(
            f"{function}: SuperLU counts up to {_LARGEST}, A has {n} rows and {len(col)} entries; use an "
            "iterative solver"
        )
    if n == 0:
        return []
    indptr, indices = (_host(t.to(torch.int32)).numpy() for t in (crow, col))
    rows = np.repeat(np.arange(n, dtype=np.intc), np.diff(indptr))
    on_diagonal = rows == indices
    if on_diagonal.sum() < n:
        # SuperLU breaks down on some such matrices, in calls of BLAS with invalid sizes.
        structure = scipy.sparse.csr_array((np.ones(len(rows), np.int8), indices, indptr), shape=(n, n))
        if fault := no_matching(structure):
            raise ValueError(
                f"{function}: A is structurally singular: {fault}; remove that row and column, or add "
                "entries there"
            )
    numbers = values.numpy()
    single = numbers.ndim == 1
    made = []
    for at, data in enumerate([numbers] if single else numbers):
        which = "A" if single else f"matrix {at} of the batch"
        largest = _largest(data)
        if not np.isfinite(largest):
            p = int(np.flatnonzero(~np.isfinite(data))[0])
            raise ValueError(
                f"{function}: the values of {which} must be finite, got {data[p]} at row {rows[p]}, column "
                f"{indices[p]} (values[{p}]); look for what made it"
            )
        S = scipy.sparse.csc_array((data, indices, indptr), shape=(n, n))
        S.has_canonical_format = True
        options = _NO_PIVOTING if _diagonally_dominant(n, rows, indices, on_diagonal, data) else {}
        try:
            made.append(LU(S, float(largest), scipy.sparse.linalg.splu(S, **options)))
        except RuntimeError as error:
            if "singular" not in str(error):
                raise
            raise ValueError(f"{function}: {which} is {why_singular(S.T)}") from None
    return made


# For diagonally dominant matrices: growth is at most 2 (Higham, Accuracy and Stability of Numerical
# Algorithms, section 9.5), and an ordering for pivots on the diagonal leaves half the fill or less.
_NO_PIVOTING = {
    "permc_spec": "MMD_AT_PLUS_A",
    "diag_pivot_thresh": 0.0,
    "options": {"SymmetricMode": True},
}


def _diagonally_dominant(
    n: int, rows: np.ndarray, columns: np.ndarray, on_diagonal: np.ndarray, data: np.ndarray
) -> bool:
    """|a_ii| >= sum of the |a_ij|, i != j, in every row, or so in every column."""
    size = np.abs(data)
    twice = 2 * np.bincount(rows[on_diagonal], size[on_diagonal], n)
    return any(bool((twice >= np.bincount(along, size, n)).all()) for along in (rows, columns))


def _host(t: Tensor) -> Tensor:
    return t.detach().resolve_neg().cpu().contiguous()


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and a.shape == b.shape and torch.equal(a, b)


# --- for torch.compile: the same solve as an opaque operator ---

# The backward may never run: hence the limit.
_recent = Recent(8, 2**30, Factors.bytes)


def _remembered(crow: Tensor, col: Tensor, values: Tensor) -> list[LU]:
    """The factors that an earlier call made."""
    values = _host(values)
    factors = _recent.find(lambda known: known.find(crow, col, values))
    if factors is None:
        new = Factors("spsolve")
        factors = new.of(crow.clone(), col.clone(), values)
        _recent.add(new)
    return factors


@torch.library.custom_op("learnsolve::superlu_solve", mutates_args=())
def superlu_solve(crow: Tensor, col: Tensor, values: Tensor, b: Tensor, transpose: bool) -> Tensor:
    """`solve`, with the factors of one of the last calls if it had the same values."""
    return _solve("spsolve", _remembered(crow, col, values), b, transpose)


@superlu_solve.register_fake
def _(crow, col, values, b, transpose):
    return b.new_empty(b.shape)
