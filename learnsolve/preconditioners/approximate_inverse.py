"""A learned approximate inverse in factored form, M = L L^T.

Sources: Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation",
arXiv 2212.05159, section 4.3; Kolotilina and Yeremin, "Factorized sparse approximate inverse
preconditionings I. Theory", SIAM J. Matrix Anal. Appl. 14, 1993, doi:10.1137/0614004.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch

from learnsolve import _check
from learnsolve.csr import CSR
from learnsolve.nn._holds_pattern import HoldsPattern, parameter
from learnsolve.ops._local_solve import NotPositive, local_solve
from learnsolve.ops._selection import trusted
from learnsolve.ops.triangle import triangle_of
from learnsolve.pattern import SparsityPattern, as_numpy
from learnsolve.preconditioners._held import Holder, check_constant, check_start
from learnsolve.preconditioners.factored import Factored

_INSTEAD = 'use preconditioners.Factored(L, form="product"), which keeps the graph of L.values'


class ApproximateInverse(HoldsPattern, Holder):
    r"""A learned factor of an approximate inverse, :math:`M = L L^T`, applied as two products.

    Parameters
    ----------
    L : CSR, shape (n, n), float32 or float64: the pattern, which need not be triangular, and the values to
        start from, (..., nnz). Common ones: ``bidiagonal(n)``, ``from_pattern(pattern)``,
        ``initialise_from(A)``; patterns of a matrix by `lower_pattern`

    Attributes
    ----------
    values : Parameter, those of L
    pattern : SparsityPattern of L
    L : CSR of both

    Raises
    ------
    ValueError
        if L is not square or its values are not finite.

    Notes
    -----
    Linear, symmetric, positive semi-definite for all values, definite where L is regular (for a triangular
    pattern: no zero on its diagonal). A fixed number of iterations of `cg` runs compiled with it.

    Gradient: exact, for the values and r, to any order. Cost: 4 nnz flops a column of r, without the
    dependences of a triangular solve.

    References
    ----------
    N. Nytko et al., "Optimized Sparse Matrix Operations for Reverse Mode Automatic Differentiation",
    arXiv 2212.05159, 2022.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> M = ls.preconditioners.ApproximateInverse.bidiagonal(64)
    >>> ls.solvers.cg(A, b, M=M, rtol=0.0, maxiter=4, gradient="unrolled").residual_norms[-1].backward()
    >>> M.values.grad.shape
    torch.Size([127])
    """

    symmetric = True

    def __init__(self, L: CSR):
        super().__init__()
        name = type(self).__name__
        _check.matrix(name, "L", L)
        _check.square(name, "L", L.shape)
        check_start(name, "L.values", L.values, _INSTEAD)
        self._hold(L.pattern)
        self.values = parameter(L.values)
        self.shape, self.batch_shape = L.shape, L.batch_shape

    @classmethod
    def bidiagonal(
        cls,
        n: int,
        diagonal: float = 2.0,
        off: float = 0.1,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> ApproximateInverse:
        """L lower bidiagonal, `diagonal` on the diagonal and `off` below: 2 I + 0.1 S is where section 4.3 of
        the paper starts."""
        n = _check.integer("ApproximateInverse.bidiagonal", "n", n, 0)
        rows = np.arange(n)
        crow = torch.from_numpy(np.concatenate(([0], 2 * rows + 1))).to(device)
        col = torch.from_numpy(np.stack((rows - 1, rows), 1).reshape(-1)[1:]).to(device)
        return cls.from_pattern(SparsityPattern._trusted(crow, col, (n, n)), diagonal, off, dtype)

    @classmethod
    def from_pattern(
        cls,
        pattern: SparsityPattern,
        diagonal: float = 1.0,
        off: float = 0.0,
        dtype: torch.dtype = torch.float64,
    ) -> ApproximateInverse:
        """L on `pattern`, `diagonal` on the diagonal and `off` elsewhere."""
        if not isinstance(pattern, SparsityPattern):
            raise TypeError(
                "ApproximateInverse.from_pattern: pattern must be a SparsityPattern, got "
                f"{type(pattern).__name__}; of a CSR take L.pattern, or lower_pattern(A)"
            )
        function = "ApproximateInverse.from_pattern"
        diagonal, off = (_check.real(function, k, v) for k, v in (("diagonal", diagonal), ("off", off)))
        on = pattern.row_indices == pattern.col_indices
        values = torch.full((pattern.nnz,), off, dtype=dtype, device=pattern.device)
        return cls(CSR(values.masked_fill_(on, diagonal), pattern))

    @classmethod
    def initialise_from(cls, A: CSR, pattern: SparsityPattern | None = None) -> ApproximateInverse:
        r"""Start as the factorised sparse approximate inverse (FSAI) of A on a triangular pattern.

        Column j of L, on its rows J, is :math:`l_j = y / \sqrt{y_j}` with :math:`A_{JJ}\, y = e_j`. Of all L
        on the pattern this one minimises Kaporin's condition number of :math:`L^T A L`; its diagonal is one.

        Parameters
        ----------
        A : CSR, symmetric positive definite; its values may be (..., nnz)
        pattern : lower or upper triangular, with its diagonal; that of tril(A) if not given. `lower_pattern`
            makes larger ones

        Raises
        ------
        ValueError
            if the pattern does not fit, or a block :math:`A_{JJ}` is not numerically positive definite.

        Notes
        -----
        A must not require grad. One Cholesky factorisation of a dense block a column, those of one size
        together, about 8 MiB of blocks at a time. The places of the blocks are kept with A's pattern, 4 s^2
        bytes for a column with s entries.

        References
        ----------
        L. Yu. Kolotilina and A. Yu. Yeremin, "Factorized sparse approximate inverse preconditionings I.
        Theory", SIAM J. Matrix Anal. Appl. 14, 1993, doi:10.1137/0614004.
        """
        function = "ApproximateInverse.initialise_from"
        check_constant(function, A, _INSTEAD)
        _check.square(function, "A", A.shape)
        return cls(_fsai(function, A, lower_pattern(A) if pattern is None else pattern))

    @property
    def L(self) -> CSR:
        return CSR(self.values, self.pattern)

    def current(self) -> Factored:
        return self._with(Factored, L=self.L, form="product")

    def pcg_form(self) -> tuple[str, torch.Tensor, SparsityPattern]:
        return "product", self.values, self.pattern  # that of `current()`, which a solve need not make

    def extra_repr(self) -> str:
        return f"shape={self.shape}, nnz={self.pattern.nnz}"


def lower_pattern(A: CSR | SparsityPattern, rings: int = 1) -> SparsityPattern:
    """Entries on and below the diagonal of A's pattern, or of the power `rings` of it.

    ``rings=1`` is tril(A), ``rings=2`` has the neighbours of neighbours, and so on. The same object in every
    call, for ``rings=1`` that of `ops.tril` and of the factors of `ops.ic0`.

    Parameters
    ----------
    A : CSR or SparsityPattern, square
    rings : int, at least 1: the power of the pattern

    Returns
    -------
    SparsityPattern

    Raises
    ------
    ValueError, TypeError
        if A is not square, or `rings` is not a positive int.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((8, 8))
    >>> ls.preconditioners.lower_pattern(A).nnz, ls.preconditioners.lower_pattern(A, rings=2).nnz
    (176, 370)
    """
    P = A.pattern if isinstance(A, CSR) else A
    if not isinstance(P, SparsityPattern):
        raise TypeError(f"lower_pattern: A must be a CSR or a SparsityPattern, got {type(A).__name__}")
    _check.square("lower_pattern", "A", P.shape)
    rings = _check.integer("lower_pattern", "rings", rings, 1)
    return triangle_of(P, "lower") if rings == 1 else P._planned(_plan_lower, rings)[0]


def _plan_lower(P: SparsityPattern, rings: int) -> tuple[SparsityPattern]:
    crow, col = as_numpy(P.crow_indices), as_numpy(P.col_indices)
    S = scipy.sparse.csr_array((np.ones(P.nnz), col, crow), shape=P.shape)
    power = S
    for _ in range(rings - 1):
        power = (power @ S).astype(bool).astype(float)
    lower = scipy.sparse.csr_array(scipy.sparse.tril(power, format="csr"))
    lower.sort_indices()
    return (trusted(P, lower.indptr, lower.indices, P.shape),)


def _fsai(function: str, A: CSR, S: SparsityPattern) -> CSR:
    if not isinstance(S, SparsityPattern):
        raise TypeError(f"{function}: pattern must be a SparsityPattern, got {type(S).__name__}")
    if S.shape != A.shape:
        raise ValueError(f"{function}: the pattern must have A's shape {A.shape}, got {S.shape}")
    if S._missing_diagonal >= 0:
        raise ValueError(
            f"{function}: the pattern must have its diagonal, row {S._missing_diagonal} has no entry there"
        )
    below = S.col_indices <= S.row_indices
    if not (bool(below.all()) or bool((S.col_indices >= S.row_indices).all())):
        raise ValueError(
            f"{function}: the pattern must be lower or upper triangular, {int(below.sum())} of its {S.nnz} "
            "entries are on or below the diagonal; take ops.tril, or lower_pattern(A)"
        )
    on = S.diagonal_positions.long()
    unit = torch.zeros(S.nnz, dtype=A.dtype, device=A.device).index_fill_(0, on, 1)
    with torch.no_grad():
        try:
            y = local_solve(A.detach(), CSR(unit, S)).values
        except NotPositive as error:
            raise ValueError(
                f"{function}: A must be positive definite, its block for column {error.column} of the "
                "pattern is not, to working precision; shift A's diagonal"
            ) from None
        scale = y.index_select(-1, on).rsqrt()
        return CSR(y * scale.index_select(-1, S.col_indices), S)
