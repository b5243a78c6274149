"""SciPy's SuperLU: always available, for every matrix.

The CSR arrays of A are the CSC arrays of A^T, so SuperLU factors A^T without conversion, and a solve with A
is a transposed solve with these factors.

The column order is cached with the pattern. Applied to rows and columns, with the entries of each column in
their old order, it leads to the same pivots, hence the same bits, without searching again.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from learnsolve.ops.core.direct.backend import NotDefinite, Singular, Structure

# For diagonally dominant matrices: growth is at most 2 (Higham, Accuracy and Stability of Numerical
# Algorithms, section 9.5), and an ordering for pivots on the diagonal gives at most half the fill.
NO_PIVOTING = {
    "permc_spec": "MMD_AT_PLUS_A",
    "diag_pivot_thresh": 0.0,
    "options": {"SymmetricMode": True},
}
# Pivots on the diagonal, unless they are much smaller than others.
_RARE_PIVOTING = NO_PIVOTING | {"diag_pivot_thresh": 0.01}


class _Order(NamedTuple):
    """Row and column i come from `old[i]` and go to `new[i]`."""

    old: np.ndarray
    new: np.ndarray
    positions: np.ndarray  # of the entries, column by column
    transposed: scipy.sparse.csc_array


class SuperLU:
    name: ClassVar[str] = "superlu"
    kinds: ClassVar[tuple[str, ...]] = ("cholesky", "ldlt", "lu")
    orderings: ClassVar[dict[str, Any]] = {
        "minimum_degree": "MMD_AT_PLUS_A",
        "colamd": "COLAMD",
        "natural": "NATURAL",
    }
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64", "complex64", "complex128")

    def __init__(self, structure: Structure, kind: str, ordering: str):
        self.kind, self.ordering, self.n = kind, ordering, structure.n
        self.indptr, self.indices = structure.indptr, structure.indices
        self.transposed = self._matrix(self.indices, self.indptr)
        self._columns: dict[str, np.ndarray] = {}
        self._orders: dict[str, _Order] = {}

    def factor(self, data: np.ndarray) -> Factored:
        if self.kind == "lu":
            options = NO_PIVOTING if self._diagonally_dominant(data) else {}
        else:
            options = NO_PIVOTING if self.kind == "cholesky" else _RARE_PIVOTING
        if self.ordering != "auto":
            options = options | {"permc_spec": self.orderings[self.ordering]}
        way = str(options)
        order = self._order(way)
        S = copy.copy(self.transposed if order is None else order.transposed)
        S.data = data if order is None else data[order.positions]
        if order is not None:
            options = options | {"permc_spec": "NATURAL"}
        try:
            lu = scipy.sparse.linalg.splu(S, **options)
        except RuntimeError as error:
            if "singular" not in str(error):
                raise
            raise (NotDefinite() if self.kind == "cholesky" else Singular()) from None
        if order is None:
            self._columns[way] = lu.perm_c
        factor = Factored(self.kind, lu, order)
        if self.kind == "cholesky":
            factor.check_definite()
        return factor

    def _matrix(self, indices: np.ndarray, indptr: np.ndarray) -> scipy.sparse.csc_array:
        """A^T without values. SuperLU does not need sorted columns."""
        S = scipy.sparse.csc_array((np.empty(len(indices)), indices, indptr), shape=(self.n, self.n))
        S.has_canonical_format = True
        return S

    def _order(self, way: str) -> _Order | None:
        """Computed for the second matrix, since most patterns have only one."""
        order = self._orders.get(way)
        if order is None and (new := self._columns.get(way)) is not None:
            old = np.argsort(new)
            lengths = np.diff(self.indptr)[old]
            indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.intc)
            positions = np.arange(len(self.indices)) + np.repeat(self.indptr[old] - indptr[:-1], lengths)
            indices = new[self.indices[positions]].astype(np.intc)
            order = self._orders[way] = _Order(old, new, positions, self._matrix(indices, indptr))
        return order

    def _diagonally_dominant(self, data: np.ndarray) -> bool:
        """|a_ii| >= sum of the |a_ij|, i != j, in every row, or in every column."""
        size = np.abs(data)
        rows = np.repeat(np.arange(self.n, dtype=np.intc), np.diff(self.indptr))
        on_diagonal = rows == self.indices
        twice = 2 * np.bincount(rows[on_diagonal], size[on_diagonal], self.n)
        return any(bool((twice >= np.bincount(along, size, self.n)).all()) for along in (rows, self.indices))


class Factored:
    """SuperLU's factors of the transpose of a matrix, whose rows and columns are reordered."""

    backend = "superlu"

    def __init__(self, kind: str, lu: Any, order: _Order | None):
        self.kind, self.lu, self.order = kind, lu, order

    @property
    def entries(self) -> int:
        return self.lu.nnz

    def solve(self, b: np.ndarray, transpose: bool) -> np.ndarray:
        trans = "N" if transpose else "T"
        if self.order is None:
            return self.lu.solve(b, trans)
        return self.lu.solve(b[self.order.old], trans)[self.order.new]

    def check_definite(self) -> None:
        new = self.lu.perm_c
        bad = ~(self.lu.U.diagonal().real > 0)
        bad[new] |= self.lu.perm_r != new  # a pivot off the diagonal
        if bad.any():
            row = int(np.flatnonzero(new == np.argmax(bad))[0])
            raise NotDefinite(row if self.order is None else int(self.order.old[row]))

    def logdet(self) -> float:
        return float(np.log(np.abs(self.lu.U.diagonal()), dtype=np.float64).sum())

    def negative(self) -> int | None:
        on_diagonal = np.array_equal(self.lu.perm_r, self.lu.perm_c)
        return int((self.lu.U.diagonal().real < 0).sum()) if on_diagonal else None
