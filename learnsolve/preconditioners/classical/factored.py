"""Preconditioners in factored form, with differentiable factors.

Sources: Saad, "Iterative Methods for Sparse Linear Systems" (2003), chapter 10; Kolotilina and Yeremin,
"Factorized sparse approximate inverse preconditionings I. Theory", SIAM J. Matrix Anal. Appl. 14, 1993,
doi:10.1137/0614004.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve.matrix import checks
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.matrix.plain import readable
from learnsolve.ops.core.operands import fit, in_open_interval
from learnsolve.ops.core.triangular import _mask
from learnsolve.ops.diagonal import diagonal
from learnsolve.ops.diagonals import diag
from learnsolve.ops.spmm import spmm
from learnsolve.ops.sptrsv import sptrsv
from learnsolve.ops.stack import hstack
from learnsolve.ops.triangle import tril
from learnsolve.preconditioners.base import Part, Preconditioner, check_constants, check_finite

FORMS = ("solve", "product")


class Factored(Preconditioner):
    r"""Triangular solves or products with differentiable factors, for example predicted by a network.

    .. math:: M = (L L^T)^{-1} \text{ or } (L U)^{-1} \quad (\mathtt{form="solve"}), \qquad
              M = L L^T + s I \text{ or } L U + s I \quad (\mathtt{form="product"})

    Linear; without `U` symmetric, and positive definite if s > 0 or L is nonsingular.

    Parameters
    ----------
    L : CSR, values (..., nnz). form="solve": (n, n), lower triangular with its diagonal (ones or no entries,
        if there is a U). form="product": any pattern, shape (n, m)
    U : CSR, upper triangular with its diagonal, or (m, n)
    form : "solve" or "product"
    shift : s, for form="product": positive float, or Tensor, shape () or one per matrix of the batch

    Attributes
    ----------
    L, U, form, shift : as given

    Raises
    ------
    ValueError
        if shapes or patterns do not match, or, on the CPU, values are not finite or a diagonal to solve with
        has a zero (the message names the row).
    TypeError
        if a type, dtype or device is wrong.

    Notes
    -----
    Gradient: exact, for the values of L and U, a Tensor shift, and r, to any order. Nothing is copied.
    ``Factored.bidiagonal(n)`` and ``from_pattern(pattern)`` are initial products for training. Cost: two
    triangular solves or products, 2 nnz flops each per column.

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A, b = ls.problems.poisson((8, 8)), torch.ones(64, dtype=torch.float64)
    >>> M = ls.preconditioners.Factored(ls.ops.ic0(A).L)
    >>> ls.solvers.cg(A, b, M=M).iterations < ls.solvers.cg(A, b).iterations
    True
    """

    symmetric = True
    L: CSR
    U: CSR | None = None
    form = "solve"
    shift: Any = 0.0

    def __init__(self, L: CSR, U: CSR | None = None, *, form: str = "solve", shift: float | Tensor = 0.0):
        name = type(self).__name__
        checks.one_of(name, "form", form, FORMS)
        checks.matrix(name, "L", L)
        checks.dtype(name, "L.values", L.values)
        check_finite(name, L, "L")
        self.L, self.U, self.form, self.symmetric = L, U, form, U is None
        self.shape, self.batch_shape, self.depends_on = (L.shape[0], L.shape[0]), L.batch_shape, (L.values,)
        if U is not None:
            checks.matrix(name, "U", U)
            checks.dtype(name, "U.values", U.values)
            fit(name, L, U, "L", "U")
            check_finite(name, U, "U")
            if U.shape != L.shape[::-1]:
                raise ValueError(f"{name}: U must have shape {L.shape[::-1]}, for L {L.shape}, got {U.shape}")
            self.batch_shape = torch.broadcast_shapes(L.batch_shape, U.batch_shape)
            self.depends_on += (U.values,)
        if form == "solve":
            self._check_solvable(name)
        if isinstance(shift, Tensor) or shift != 0:
            self._add(name, shift)

    @classmethod
    def bidiagonal(
        cls,
        n: int,
        diagonal: float = 2.0,
        off: float = 0.1,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> Factored:
        """M = L L^T with L lower bidiagonal, `diagonal` on the diagonal and `off` below. Section 4.3 of arXiv
        2212.05159 starts from L = 2 I + 0.1 S."""
        n = checks.integer("Factored.bidiagonal", "n", n, 0)
        rows = np.arange(n)
        crow = torch.from_numpy(np.concatenate(([0], 2 * rows + 1))).to(device)
        col = torch.from_numpy(np.stack((rows - 1, rows), 1).reshape(-1)[1:]).to(device)
        return Factored.from_pattern(SparsityPattern._trusted(crow, col, (n, n)), diagonal, off, dtype)

    @classmethod
    def from_pattern(
        cls,
        pattern: SparsityPattern,
        diagonal: float = 1.0,
        off: float = 0.0,
        dtype: torch.dtype = torch.float64,
    ) -> Factored:
        """M = L L^T with L on `pattern`, `diagonal` on the diagonal and `off` elsewhere."""
        function = "Factored.from_pattern"
        if not isinstance(pattern, SparsityPattern):
            raise TypeError(
                f"{function}: pattern must be a SparsityPattern, got {type(pattern).__name__}; for a CSR "
                "pass L.pattern, or lower_pattern(A)"
            )
        diagonal, off = (checks.real(function, k, v) for k, v in (("diagonal", diagonal), ("off", off)))
        on = pattern.row_indices == pattern.col_indices
        values = torch.full((pattern.nnz,), off, dtype=dtype, device=pattern.device)
        return Factored(CSR(values.masked_fill_(on, diagonal), pattern), form="product")

    def _check_solvable(self, name: str) -> None:
        L, U = self.L, self.U
        checks.square(name, "L", L.shape)
        check_triangular(name, "L", L, lower=True)
        divisor = ("L", L)
        if U is not None:
            check_triangular(name, "U", U, lower=False)
            if readable(L.values):
                _check_ones(name, L)
            divisor = ("U", U)
        check_has_diagonal(name, *divisor)
        _check_divisors(name, *divisor)

    def _add(self, name: str, shift: float | Tensor) -> None:
        values = self.L.values.expand(*self.batch_shape, -1)
        self.shift = in_open_interval(name, "shift", shift, values, math.inf, "be positive and finite")
        if self.form != "product":
            raise ValueError(
                f'{name}: shift is for form="product", M = L L^T + shift I; for form="solve" leave it out '
                "and shift the matrix that is factorized (ops.ic0 has shift=)"
            )
        if isinstance(shift, Tensor):
            self.depends_on += (shift,)

    def _learnable(self) -> dict[str, Part]:
        L, U = self.L, self.U
        if U is None:
            parts = {"L": Part(L, "diagonal")}
        elif self.form == "solve":  # the unit diagonal of L is not read
            parts = {"L": Part(tril(L, -1)), "U": Part(U, "absolute diagonal")}
        else:
            parts = {"L": Part(L), "U": Part(U)}
        if self.form == "product" and (isinstance(self.shift, Tensor) or self.shift):
            shift = torch.as_tensor(self.shift, dtype=L.dtype, device=L.device)
            parts["shift"] = Part(shift, "all", default=False)
        return parts

    def _without(self, names: Collection[str]) -> Preconditioner:
        """A plain `Factored`, whatever the source of the factors."""
        shift = self.shift if self.form == "product" else 0.0
        rest = {"L": self.L, "U": self.U, "shift": shift}
        rest = {name: value for name, value in rest.items() if name not in names}
        numbers = (t.values if isinstance(t, CSR) else t for t in rest.values())
        check_constants(t for t in numbers if isinstance(t, Tensor))
        about = {"shape": self.shape, "batch_shape": self.batch_shape, "form": self.form}
        return Factored._trusted(**about, symmetric=self.U is None, **rest)

    def _columns(self, R: Tensor) -> Tensor:
        return self._apply(R, False)

    def _transposed(self, R: Tensor) -> Tensor:
        return self._apply(R, True)

    def _apply(self, R: Tensor, transpose: bool) -> Tensor:
        L, U = self.L, self.U
        if self.form == "product":
            if U is None:
                out = spmm(L, spmm(L, R, transpose=True))
            elif transpose:
                out = spmm(U, spmm(L, R, transpose=True), transpose=True)
            else:
                out = spmm(L, spmm(U, R))
            s = self.shift
            if isinstance(s, Tensor):
                return out + s[..., None, None] * R
            return out + s * R if s else out
        if U is None:
            return sptrsv(L, sptrsv(L, R), transpose=True)
        if transpose:
            return sptrsv(L, sptrsv(U, R, lower=False, transpose=True), unit_diagonal=True, transpose=True)
        return sptrsv(U, sptrsv(L, R, unit_diagonal=True), lower=False)

    def pcg_form(self) -> tuple[str, Tensor, Any] | None:
        if self.U is not None:
            return None
        if self.form == "solve":
            return "triangular", self.L.values, self.L.pattern
        G = self._square_root() if isinstance(self.shift, Tensor) or self.shift else self.L
        return "product", G.values, G.pattern

    def _square_root(self) -> CSR:
        """G = [L, sqrt(s) I], for which G G^T = L L^T + s I."""
        L = self.L
        s = torch.as_tensor(self.shift, dtype=L.dtype, device=L.device).sqrt()
        ones = torch.ones(L.shape[0], dtype=L.dtype, device=L.device)
        return hstack((L, diag(s.unsqueeze(-1) * ones)))

    def __repr__(self) -> str:
        U = "" if self.U is None else f", U={self.U!r}"
        return f"{type(self).__name__}(L={self.L!r}{U}, form={self.form!r}, shift={self.shift})"


def check_triangular(function: str, name: str, T: CSR, lower: bool) -> None:
    read = T.pattern._planned(_mask, lower, False).read
    if read is not None:
        side, triangle = ("lower", "tril") if lower else ("upper", "triu")
        raise ValueError(
            f"{function}: {name} must be {side} triangular, but {T.nnz - int(read.sum())} of its {T.nnz} "
            f"entries lie in the other triangle; take ops.{triangle}({name})"
        )


def check_has_diagonal(function: str, name: str, T: CSR) -> None:
    row = T.pattern._missing_diagonal
    if row >= 0:
        raise ValueError(
            f"{function}: {name} must have an entry on its diagonal in every row, row {row} has none; add it"
        )


def _check_divisors(function: str, name: str, T: CSR) -> None:
    """Raise for a zero on the diagonal, if values can be read; `sptrsv` checks it in every call."""
    if not readable(T.values):
        return
    d = T.values.detach().index_select(-1, T.pattern.diagonal_positions)
    bad = d.reciprocal().isinf().nonzero()
    if len(bad):
        at: list[int] = bad[0].tolist()
        which = f" of matrix {at[0] if len(at) == 2 else tuple(at[:-1])} of the batch" if len(at) > 1 else ""
        raise ValueError(
            f"{function}: {name} is divided by, so its diagonal must not have zeros, or numbers whose "
            f"reciprocal overflows, row {at[-1]}{which} has {d[tuple(at)].item():.6g}; shift it"
        )


def _check_ones(function: str, L: CSR) -> None:
    d = diagonal(L).detach()
    there = L.pattern.diagonal_positions >= 0
    wrong = ((d != 1) & there).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise ValueError(
            f"{function}: beside a U, L must have ones on its diagonal, or no entries, row {at[-1]} has "
            f"{d[at].item():.6g}; move the diagonal to U"
        )
