"""Eigenpairs without derivatives: ARPACK, LOBPCG, and shifted inverses, with blocks of vectors that are
orthonormal for B."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

from learnsolve import ops
from learnsolve.matrix.csr import CSR
from learnsolve.matrix.pattern import SparsityPattern
from learnsolve.ops import direct_backends
from learnsolve.ops.direct import available
from learnsolve.preconditioners.direct import factorize
from learnsolve.solvers.automatic import direct_cost


def lengths(X: Tensor, BX: Tensor) -> Tensor:
    """The norms sqrt(<x, B x>) of columns."""
    return (X * BX).sum(0).clamp(min=0).sqrt()


def orthonormal(X: Tensor, B: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(Q, B Q, S) with X = Q S, Q^T B Q = I. Numerically dependent columns are dropped.

    Source: Stathopoulos and Wu, "A block orthogonalization procedure with constant synchronization
    requirements", SIAM J. Sci. Comput. 23 (2002) 2165-2182.
    """
    Q, BQ, S = X, B(X), torch.eye(X.shape[1], dtype=X.dtype, device=X.device)
    for _ in range(2):  # the second pass removes rounding errors of nearly dependent columns
        gram = Q.mT @ BQ
        scale = gram.diagonal().clamp(min=0).sqrt()
        scale = torch.where(scale > 0, scale, 1)
        d, E = torch.linalg.eigh(0.5 * (gram + gram.mT) / (scale * scale.unsqueeze(-1)))
        rank = d > 1e3 * torch.finfo(X.dtype).eps * d.max() if len(d) else d > 0
        root, E = d[rank].sqrt(), E[:, rank]
        Q, S = Q @ (E / (scale.unsqueeze(-1) * root)), (root.unsqueeze(-1) * E.mT * scale) @ S
        BQ = B(Q)
        if len(d) and bool(rank.all()) and d.min() > 1e-3 * d.max():
            break
    return Q, BQ, S


def columns(X: Tensor, chosen: Tensor) -> Tensor:
    """X[:, chosen], without the slow copy if all columns are chosen."""
    return X if bool(chosen.all()) else X[:, chosen]


# SciPy's ARPACK: Lanczos's method with implicit restarts, on A or on (A - sigma B)^-1.
#
# A Krylov space holds one vector of each eigenspace. Further copies of a multiple eigenvalue enter only by
# rounding errors, and some are missed. So another run, from another vector and with the found pairs
# deflated, looks for one that should be among them, until there is none: with probability one a random
# vector has a component in every eigenspace.


Sparse = scipy.sparse.csr_array
# In an invariant subspace SciPy's ARPACK continues with random numbers, system-seeded since 1.17.
SEEDED: dict[str, object] = (
    {"rng": 0} if "rng" in inspect.signature(scipy.sparse.linalg.eigsh).parameters else {}
)


_LOOK = 1e-8  # accuracy of a vector that only shows whether a pair is missing: its value has its square


def lanczos(
    A: Sparse,
    B: Sparse | None,
    k: int,
    sigma: float | None,
    inverse: Callable[[np.ndarray], np.ndarray] | None,
    tol: float,
    maxiter: int | None,
) -> tuple[Tensor, Tensor, int]:
    """The k values nearest to sigma, where `inverse` is (A - sigma B)^-1, or the largest, where `inverse` is
    B^-1, with all copies, their vectors, and the number of products. NaN for pairs that did not converge, or
    are not known to be among the k."""
    n, random = len(A.indptr) - 1, np.random.default_rng(0)
    values, U, count = _run(A, B, k, sigma, inverse, tol, maxiter, random.standard_normal(n))
    for _ in range(k + 1):
        if len(values) < k or k == n:
            break
        start = random.standard_normal(n)
        new, u, more = _run(A, B, 1, sigma, inverse, _LOOK, None, start, values, U)
        count += more
        # The distances from sigma, or from the upper end: a new pair replaces the one that is farthest.
        far, at = (-values, -new) if sigma is None else (abs(values - sigma), abs(new - sigma))
        last = int(np.argmax(far))
        if not len(new):
            values = new
            break
        if not at[0] < far[last] - 1e-10 * abs(far).max():
            break
        new, u, more = _run(A, B, 1, sigma, inverse, tol, maxiter, u[:, 0], values, U)
        count += more
        values, U = np.append(np.delete(values, last), new), np.append(np.delete(U, last, 1), u, 1)
    else:
        values = values[:0]
    order = np.argsort(values)
    full, block = np.full(k, np.nan), np.full((n, k), np.nan)
    full[: len(order)], block[:, : len(order)] = values[order], U[:, order]
    return torch.from_numpy(full), torch.from_numpy(block), count


def _run(
    A: Sparse,
    B: Sparse | None,
    k: int,
    sigma: float | None,
    inverse: Callable[[np.ndarray], np.ndarray] | None,
    tol: float,
    maxiter: int | None,
    start: np.ndarray,
    known: np.ndarray | None = None,
    U: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, int]:
    """One run of ARPACK, among the vectors that are orthogonal to U in the product of B, with the values
    `known`. Only the pairs that converged."""
    count = 0
    W = U if B is None or U is None else B @ U
    # ARPACK's criterion is absolute for values below 1e-11: in its units those sought are not small.
    largest = abs(A).sum(1).max() + abs(sigma or 0.0)
    unit = 2.0 ** round(np.log2(largest)) if largest > 0 else 1.0
    moved = 0.0 if U is None or sigma is not None else 2.0

    def operator(apply: Callable[[np.ndarray], np.ndarray]) -> Any:
        def matvec(x: np.ndarray) -> np.ndarray:
            nonlocal count
            count += 1
            return apply(x)

        return scipy.sparse.linalg.LinearOperator(A.shape, matvec=matvec, dtype=np.float64)  # type: ignore

    def without(X: Any, Y: Any, x: np.ndarray) -> np.ndarray:
        return x if U is None else x - X @ (Y.T @ x)

    options: dict[str, Any] = {"which": "LA"}
    if sigma is not None:
        # In terms of nu = (lambda - sigma) / unit, the shift is zero.
        solve = operator(lambda x: unit * without(U, W, inverse(without(W, U, x))))  # type: ignore[misc]
        options, matrix = {"which": "LM", "sigma": 0.0, "OPinv": solve}, A
        # Of a random vector, rows with huge entries would keep rounding errors.
        start = inverse(start if B is None else B @ start)  # type: ignore[misc]
    else:
        if B is not None:
            options["Minv"] = scipy.sparse.linalg.LinearOperator(A.shape, matvec=inverse, dtype=np.float64)  # type: ignore

        def product(x: np.ndarray) -> np.ndarray:
            y = without(W, U, A @ without(U, W, x)) / unit
            if U is None:
                return y
            # The known vectors get a value below all that could be missing, which is not near zero.
            y = y - (abs(known).max() - known.min()) / unit * (W @ (W.T @ x))  # type: ignore
            return y + moved * (x if B is None else B @ x)

        matrix = operator(product)
    start, eigsh = without(U, W, start), scipy.sparse.linalg.eigsh
    try:
        found: Any = eigsh(matrix, k, M=B, v0=start, tol=tol, maxiter=maxiter, **options, **SEEDED)  # type: ignore
    except scipy.sparse.linalg.ArpackError as error:
        # Not converged, or too few distinct values to build a basis.
        found = getattr(error, "eigenvalues", ()), getattr(error, "eigenvectors", np.empty((len(start), 0)))
    return (sigma or 0.0) + unit * (np.asarray(found[0]) - moved), np.asarray(found[1]), count


# LOBPCG: the smallest eigenpairs from products with A, B and a preconditioner, all columns at once.
#
# Each step minimizes the Rayleigh quotient over the span of [X W P]: the iterates, their preconditioned
# residuals, and the previous steps. The block is kept orthonormal in the inner product of B, dependent
# columns are dropped, and converged columns stay in X but add no direction ("soft locking").
#
# Sources: Knyazev, "Toward the optimal preconditioned eigensolver", SIAM J. Sci. Comput. 23 (2001) 517-541;
# Duersch, Shao, Yang and Gu, "A robust and efficient implementation of LOBPCG", SIAM J. Sci. Comput. 40
# (2018) C655-C676.


Map = Callable[[Tensor], Tensor]


def lobpcg(
    A: Map,
    B: Map,
    M: Map | None,
    X: Tensor,
    k: int,
    tolerance: Callable[[Tensor, Tensor, Tensor], Tensor],
    most: int,
) -> tuple[Tensor, Tensor, int]:
    """The k smallest values, ascending, and their vectors, starting from the columns of X, at least k, and
    the number of steps. `tolerance(values, X, B X)` bounds the residual norms. NaN if M returns infinities.
    """
    X, BX, _ = orthonormal(X, B)
    m, P = X.shape[1], X[:, :0]
    values, C = _eigh(X.mT @ A(X))
    X = X @ C
    for step in range(most + 1):
        AX, BX = A(X), B(X)
        R = torch.addcmul(AX, BX, values, value=-1)
        norms = lengths(R, R)
        active = ~(norms <= tolerance(values, X, BX))  # true also for NaN
        if not bool(active[:k].any()) or step == most or not bool(norms.isfinite().all()):
            break
        W = columns(R, active)
        W = W if M is None else M(W)
        if not bool(W.sum().isfinite()) and not bool(W.isfinite().all()):
            values = values * torch.nan
            break
        Q = orthonormal(_against(X, BX, torch.cat((W, P), 1)), B)[0]
        size = lengths(Q, Q)
        Q = _against(X, BX, Q)  # removes rounding errors, all that remains of a column in span(X)
        Q = columns(Q, lengths(Q, Q) > 0.5 * size)
        XAQ = AX.mT @ Q
        T = torch.cat((torch.cat((X.mT @ AX, XAQ), 1), torch.cat((XAQ.mT, Q.mT @ A(Q)), 1)))
        values, C = _eigh(T)
        values, C = values[:m], C[:, :m]
        step_taken = Q @ C[m:]  # the part of the new iterates outside the span of the old ones
        X, P = torch.addmm(step_taken, X, C[:m]), columns(step_taken, active)
    return values[:k], X[:, :k], step


def _eigh(T: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.eigh(0.5 * (T + T.mT))


def _against(X: Tensor, BX: Tensor, Y: Tensor) -> Tensor:
    """Y without its components along X, in place."""
    return Y.addmm_(X, BX.mT @ Y, alpha=-1)


SUPERLU = 4e9  # flops, 0.4 s, which faster solves save: PARDISO's and CHOLMOD's take 1.2 to 3 times as long


class ShiftInvert:
    """(A - sigma B)^-1, for matrices on the host in float64, detached from the autograd graph. B = I if None.

    kind : "cholesky" raises ValueError if the matrix is not positive definite, otherwise as for `factorize`
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
                f"{function}: out of memory while factoring A - sigma B. Pass a preconditioner, M="
            ) from None
        except ValueError as error:
            if "singular" not in str(error) or kind == "cholesky":
                raise
            raise ValueError(
                f"{function}: A - sigma B is singular for sigma = {sigma:.6g}, which is an eigenvalue. Pass "
                "a number that is a little larger or smaller"
            ) from None

    def solve_vector(self, x: np.ndarray) -> np.ndarray:
        return self._factor.solve(x, False)

    def solve_block(self, X: Tensor) -> Tensor:
        made = self._triangles
        if made is None:
            return torch.from_numpy(np.ascontiguousarray(self._factor.solve(X.numpy(), False)))
        upper, lower, before, after = made
        Y = ops.sptrsv(lower, X.index_select(0, before))
        return ops.sptrsv(upper, Y, lower=False, unit_diagonal=True).index_select(0, after)

    @functools.cached_property
    def _triangles(self) -> tuple[CSR, CSR, Tensor, Tensor] | None:
        """L^T and U^T of SuperLU, and the permutations of rows before and after. SuperLU solves for one
        column after another, but the kernel of `sptrsv` loads an entry once for all columns. The matrix is
        symmetric, hence equal to the transpose of L U, and the arrays of L by columns are the arrays of L^T
        by rows."""
        made = self._factor
        if not isinstance(made, direct_backends.SuperLUFactor):
            return None
        old, new = (slice(None), slice(None)) if made.order is None else (made.order.old, made.order.new)
        n = made.lu.shape[0]
        before = torch.from_numpy(np.arange(n)[old][np.argsort(made.lu.perm_c)])
        after = torch.from_numpy(made.lu.perm_r[new].astype(np.int64))
        return _convert_triangle(made.lu.L), _convert_triangle(made.lu.U), before, after


def _convert_triangle(T: Any) -> CSR:
    T.sort_indices()
    pattern = SparsityPattern(torch.from_numpy(T.indptr), torch.from_numpy(T.indices), T.shape)
    return CSR(torch.from_numpy(T.data), pattern)


def below_all(function: str, A: CSR, B: CSR | None, *sizes: float) -> ShiftInvert:
    """A factor at a shift below all eigenvalues: slightly below 0 if A is positive semidefinite, by
    Gershgorin's theorem or its Cholesky factor, otherwise below Gershgorin's bound. `sizes`: of the values
    that are sought, then of the largest, for matrices that are singular with a shift relative to the
    first."""
    lowest = _gershgorin(A)
    for size in sizes:
        sigma = -(torch.finfo(A.dtype).eps ** 0.5) * max(size, 1e-300)
        definite = lowest >= (0.5 * sigma if B is None else 0)
        try:
            return ShiftInvert(function, A, B, sigma, "auto" if definite else "cholesky")
        except ValueError:  # singular, or not definite
            continue
    unit, sigma = 1.0 if B is None else _gershgorin(B), -(torch.finfo(A.dtype).eps ** 0.5) * sizes[0]
    if not unit > 0:
        raise ValueError(
            f"{function}: A is not positive semidefinite, and no bound of the eigenvalues is known. "
            "Pass which=, a number below the smallest, or M="
        )
    lowest = lowest / unit
    return ShiftInvert(function, A, B, lowest - max(-sigma, 1e-8 * abs(lowest)))


def _gershgorin(A: CSR) -> float:
    """A lower bound of the eigenvalues, from A or from D^-1 A D, which is better where a row and its column
    are much larger than others."""
    diagonal = A.diagonal()
    size = diagonal.abs()
    D = torch.stack((torch.ones_like(size), size.where(size > 0, 1).rsqrt()), 1)
    return float(((diagonal + size).unsqueeze(1) - (abs(A) @ D) / D).min(0).values.max())
