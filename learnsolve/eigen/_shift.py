"""(A - sigma B)^-1 from a factor, with a sigma below all eigenvalues, for blocks of columns."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learnsolve import ops
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops.core.direct import superlu
from learnsolve.ops.core.direct.choice import available
from learnsolve.preconditioners.classical.factorization import factorize
from learnsolve.solvers.core.choices import direct_cost

SUPERLU = 4e9  # flops, 0.4 s, which faster solves save: PARDISO's and CHOLMOD's take 1.2 to 3 times as long


class Shifted:
    """(A - sigma B)^-1, for matrices on the host in float64, without a graph; B = I if None.

    kind : "cholesky" raises ValueError if the matrix is not positive definite; otherwise as for `factorize`
    """

    def __init__(self, function: str, A: CSR, B: CSR | None, sigma: float, kind: str = "auto"):
        self.sigma = sigma
        S = A
        if sigma:
            S = ops.add(
                A, ops.eye(A.shape[0], dtype=A.dtype, device=A.device) if B is None else B, beta=-sigma
            )
        try:
            cheap = len(available()) > 1 and direct_cost(S, "superlu") <= SUPERLU
            backend = "superlu" if cheap else "auto"
            # Solve directly, without the warning for nearly singular A: near an eigenvalue this is intended.
            self._factor: Any = factorize(S, kind=kind, backend=backend)._all()[0].factor
        except MemoryError:
            raise MemoryError(
                f"{function}: out of memory while factoring A - sigma B; pass a preconditioner, M="
            ) from None
        except ValueError as error:
            if "singular" not in str(error) or kind == "cholesky":
                raise
            raise ValueError(
                f"{function}: A - sigma B is singular for sigma = {sigma:.6g}, which is an eigenvalue; pass "
                "a number that is a little larger or smaller"
            ) from None

    def on_vector(self, x: np.ndarray) -> np.ndarray:
        return self._factor.solve(x, False)

    def on_block(self, X: Tensor) -> Tensor:
        made = self._triangles
        if made is None:
            return torch.from_numpy(np.ascontiguousarray(self._factor.solve(X.numpy(), False)))
        upper, lower, before, after = made
        Y = ops.sptrsv(lower, X.index_select(0, before))
        return ops.sptrsv(upper, Y, lower=False, unit_diagonal=True).index_select(0, after)

    @functools.cached_property
    def _triangles(self) -> tuple[CSR, CSR, Tensor, Tensor] | None:
        """L^T and U^T of SuperLU, and the permutations of rows before and after. SuperLU solves for one
        column after another; the kernel of `sptrsv` loads an entry once for all columns. The matrix is
        symmetric, hence equal to the transpose of L U, and the arrays of L by columns are the arrays of L^T
        by rows."""
        made = self._factor
        if not isinstance(made, superlu.Factored):
            return None
        old, new = (slice(None), slice(None)) if made.order is None else (made.order.old, made.order.new)
        n = made.lu.shape[0]
        before = torch.from_numpy(np.arange(n)[old][np.argsort(made.lu.perm_c)])
        after = torch.from_numpy(made.lu.perm_r[new].astype(np.int64))
        return _by_rows(made.lu.L), _by_rows(made.lu.U), before, after


def _by_rows(T: Any) -> CSR:
    T.sort_indices()
    pattern = SparsityPattern(torch.from_numpy(T.indptr), torch.from_numpy(T.indices), T.shape)
    return CSR(torch.from_numpy(T.data), pattern)


def below_all(function: str, A: CSR, B: CSR | None, *sizes: float) -> Shifted:
    """A factor at a shift below all eigenvalues: slightly below 0 if A is positive semidefinite, by
    Gershgorin's theorem or its Cholesky factor; else below Gershgorin's bound. `sizes`: of the values that
    are sought, then of the largest, for matrices that are singular with a shift relative to the first."""
    lowest = _gershgorin(A)
    for size in sizes:
        sigma = -(torch.finfo(A.dtype).eps ** 0.5) * max(size, 1e-300)
        definite = lowest >= (0.5 * sigma if B is None else 0)
        try:
            return Shifted(function, A, B, sigma, "auto" if definite else "cholesky")
        except ValueError:  # singular, or not definite
            continue
    unit, sigma = 1.0 if B is None else _gershgorin(B), -(torch.finfo(A.dtype).eps ** 0.5) * sizes[0]
    if not unit > 0:
        raise ValueError(
            f"{function}: A is not positive semidefinite, and no bound of the eigenvalues is known; "
            "pass which=, a number below the smallest, or M="
        )
    lowest = lowest / unit
    return Shifted(function, A, B, lowest - max(-sigma, 1e-8 * abs(lowest)))


def _gershgorin(A: CSR) -> float:
    """A lower bound of the eigenvalues, from A or from D^-1 A D, which is better where a row and its column
    are much larger than others."""
    diagonal = A.diagonal()
    size = diagonal.abs()
    D = torch.stack((torch.ones_like(size), size.where(size > 0, 1).rsqrt()), 1)
    return float(((diagonal + size).unsqueeze(1) - (abs(A) @ D) / D).min(0).values.max())
