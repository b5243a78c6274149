"""Some singular triplets of a sparse matrix, as eigenpairs of H = [0, A; A^T, 0].

H (u; v) = s (u; v). Its other eigenpairs are the mirrors, -s with (u; -v), and vectors with A^T u = 0 or with
A v = 0. First derivatives for A have no part along the mirror of the pair itself, so it is left out for a
tiny s: they exist also where s equals the mirror's -s, at zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from learnsolve import ops
from learnsolve.arguments import Count, NotNegative
from learnsolve.eigen._gradient import DeflationSpace, Solve, shift_invert_solver
from learnsolve.eigen._methods import ShiftInvert
from learnsolve.eigen.symmetric import DENSE, Found, Request, SingularTriplets, _arpack, _check, compute_pairs
from learnsolve.matrix import checks
from learnsolve.matrix.checks import DenseOrSparse
from learnsolve.matrix.csr import CSR

_ENTRIES = 2**22  # of a matrix that is made dense
_TINY = 1e-8  # singular values relative to the largest, for which 1 / s would amplify rounding errors


@dataclass
class SingularRequest(Request):
    """A call of `svds`: A is H."""

    rows: int = 0

    def choice(self) -> tuple[str, str]:
        m, n = self.rows, self.A.shape[0] - self.rows
        if min(m, n) <= DENSE and m * n <= _ENTRIES:
            return "svd", f"min(m, n) is at most {DENSE}"
        if 3 * self.k > min(m, n):
            return "svd", "3 k > min(m, n)"
        return "arpack", "on the host"

    @property
    def methods(self) -> dict[str, Callable[[Request], Found]]:
        return {"svd": _svd, "arpack": _largest if self.which == "largest" else _smallest}  # type: ignore

    def matrix(self) -> CSR:
        """The matrix itself, on the host in float64."""
        return CSR.from_scipy(self.to_double().A.to_scipy()[: self.rows, self.rows :])


def _vectors(U: Tensor, V: Tensor) -> Tensor:
    return torch.cat((U, V)) / 2**0.5


def _svd(q: SingularRequest) -> Found:
    U, S, Vh = torch.linalg.svd(q.matrix().to_dense(), full_matrices=False)
    U, S, V = U.flip(1), S.flip(0), Vh.mT.flip(1)
    chosen = torch.arange(q.k, device="cpu") + (0 if q.which == "smallest" else len(S) - q.k)
    X = _vectors(U[:, chosen], V[:, chosen])
    return S[chosen], X, 0, "dense", lambda space: _triplet_solver(space, U, S, V, chosen)


def _triplet_solver(space: DeflationSpace, U: Tensor, S: Tensor, V: Tensor, chosen: Tensor) -> Solve:
    """Solves with all triplets, of which some are `chosen`."""

    def solve(values: Tensor, R: Tensor) -> tuple[Tensor, str]:
        own = chosen.repeat(len(values) // len(chosen))
        rounding = torch.finfo(S.dtype).eps * S[-1]

        def divide(P: Tensor, gap: Tensor) -> Tensor:
            """Without rounding errors in directions in which H - lambda is singular."""
            nothing = (P.abs() <= 1e-12 * R.norm(dim=0)) & (gap.abs() <= 100 * rounding) | (P == 0)
            return torch.where(nothing, 0, P / torch.where(nothing, 1, gap))

        p, q = R.split([len(U), len(V)])
        a, b = U.mT @ p, V.mT @ q
        plus = divide((a + b) / 2, S.unsqueeze(1) - values)
        plus[chosen] = 0
        along, each = (a - b) / 2, torch.arange(len(values), device=values.device)
        along[own, each] = along[own, each].where(values > _TINY * S[-1], 0)
        minus = divide(along, -S.unsqueeze(1) - values)
        rest = torch.cat((p - U @ a, q - V @ b))
        rest = rest.where(rest.norm(dim=0) > 1e-12 * R.norm(dim=0), 0)
        Y = torch.cat((U @ (plus + minus), V @ (plus - minus)))
        return Y + divide(rest, -values.expand_as(rest)), ""

    return solve


def _largest(q: SingularRequest) -> Found:
    """Lanczos's method on H. If fewer than k values are not zero, A maps all that is orthogonal to their
    vectors to zero."""
    d = q.to_double()
    n, norm = d.A.shape[0], d.norm
    values, X = (torch.zeros(size, dtype=torch.float64, device="cpu") for size in (q.k, (n, q.k)))
    count, what, solver = 0, "A is zero", _without_solve
    if norm > 0:
        values, X, count, what, solver = _arpack(q)
    zero = values <= 100 * torch.finfo(X.dtype).eps * norm
    if bool(zero.any()):
        parts = [P[:, ~zero] * 2**0.5 for P in X.split([q.rows, n - q.rows])]
        X[:, zero] = _vectors(*(_orthogonal_complement(P, int(zero.sum())) for P in parts))
        values = torch.where(zero, 0, values)
    return values, X, count, what, solver


def _smallest(q: SingularRequest) -> Found:
    """The smallest eigenpairs of A^T A, or of A A^T if A has fewer rows. Their values have half of the
    digits, so A is decomposed in their space. If that does not suffice, all of A is decomposed, if its size
    allows it."""
    d, A = q.to_double(), q.matrix()
    if d.norm == 0:
        return _largest(q)
    A = A.T if q.rows < A.shape[1] else A
    X, count = _solve_gram(q, A, q.k)
    what, eps = "shift-invert of the Gram matrix", torch.finfo(X.dtype).eps
    small = A.shape[0] * A.shape[1] <= _ENTRIES
    if not bool(X.isfinite().all()):
        missing = X.new_full((d.A.shape[0], q.k), torch.nan)
        return _svd(q) if small else (missing[0], missing, count, what, _without_solve)
    Y, values, Q = torch.linalg.svd(A @ X, full_matrices=False)
    Y, values, X = Y.flip(1), values.flip(0), X @ Q.mT.flip(1)
    zero = values <= 100 * eps * d.norm
    if bool(zero.any()):  # of which A X does not tell the left vectors
        null, more = _solve_gram(q, A.T, int(zero.sum()))
        all_left = torch.linalg.qr(torch.cat((Y[:, ~zero], null), 1))[0]
        Y[:, zero], count = all_left[:, -null.shape[1] :], count + more
    if small and not float((A.T @ Y - X * values).abs().max()) <= 100 * eps * d.norm:
        return _svd(q)
    X = _vectors(X, Y) if A.shape[0] != q.rows else _vectors(Y, X)
    sigma = 0.37 * float(values[-1]) + 1e-8 * d.norm
    return values, X, count, what, lambda space: _shift_invert_solver(q, space, X, sigma)


def _solve_gram(q: SingularRequest, A: CSR, k: int) -> tuple[Tensor, int]:
    gram = ops.spgemm(A.T, A)
    return _arpack(Request("svds", gram, None, k, "smallest", None, "arpack", q.rtol, q.maxiter, q.throw))[
        1:3
    ]


def _shift_invert_solver(q: SingularRequest, space: DeflationSpace, X: Tensor, sigma: float) -> Solve:
    """`shift_invert_solver`, with the mirror of each pair apart: (H - s) (u; -v) = -2 s (u; -v)."""
    inner = shift_invert_solver(space, ShiftInvert(q.name, q.to_double().A, None, sigma).solve_block, sigma)
    mirrors = torch.cat((X[: q.rows], -X[q.rows :]))

    def solve(values: Tensor, R: Tensor) -> tuple[Tensor, str]:
        own = mirrors.repeat(1, len(values) // mirrors.shape[1])
        along = (own * R).sum(0)
        Y, trouble = inner(values, R - own * along)
        mirrored = torch.where(values > _TINY * q.norm, along / (-2 * values), 0)
        return Y + own * (mirrored - (own * Y).sum(0)), trouble

    return solve


def _without_solve(space: DeflationSpace) -> Solve:
    """For vectors without a derivative."""
    return lambda values, R: (torch.where(R == 0, R, torch.nan), "")


def _orthogonal_complement(U: Tensor, count: int) -> Tensor:
    """`count` orthonormal columns, the same in every call."""
    generator = torch.Generator("cpu").manual_seed(0)
    more = torch.randn(len(U), count, dtype=U.dtype, generator=generator, device="cpu")
    return torch.linalg.qr(torch.cat((U, more), 1))[0][:, -count:]


def svds(
    A: DenseOrSparse,
    k: Count,
    *,
    which: Literal["largest", "smallest"] = "largest",
    rtol: NotNegative | None = None,
    maxiter: Count | None = None,
    throw: bool = False,
) -> SingularTriplets:
    r"""k singular triplets of a sparse matrix, :math:`A v = s u`, :math:`A^T u = s v`.

    Parameters
    ----------
    A : CSR, shape (m, n), values (..., nnz), or a SciPy, torch or NumPy matrix
    k : int, 1 to min(m, n)
    which : "largest" or "smallest" singular values
    rtol, maxiter, throw : see `eigsh`

    Returns
    -------
    SingularTriplets: U (..., m, k), S (..., k), descending, V (..., n, k)

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        see `eigsh`.

    Notes
    -----
    Eigenpairs of :math:`\begin{pmatrix} 0 & A \\ A^T & 0 \end{pmatrix}`, which are s with vectors (u, v): by
    LAPACK's decomposition of A if min(m, n) <= 256 or 3 k > min(m, n). Otherwise "largest" uses Lanczos's
    method, "smallest" starts from the space of the smallest eigenvectors of :math:`A^T A`, or :math:`A A^T`
    if A has fewer rows. The accuracy is relative to the largest singular value. Vectors of zero complete the
    bases.

    Gradient, including clusters, as for `eigsh`, any order. A value of zero gets a subgradient, :math:`u
    v^T`. Where A and its transpose have different null spaces, the vectors of zero have no derivative: a
    warning. Cost: as for `eigsh`. "smallest" forms the product, in which a dense row of A becomes a dense
    block.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((12, 12)).tril()
    >>> U, S, V, _ = ls.svds(A, 2)
    >>> bool((A @ V - S * U).norm() < 1e-10 * S[0])
    True
    """
    name = "svds"
    m, n = A.shape
    checks.integer(name, "k", k, 1, min(m, n))
    H = ops.block([[None, A], [A.T, None]])
    _check(name, H, k, None, which, None, "auto")
    pairs = compute_pairs(SingularRequest(name, H, None, k, which, None, "auto", rtol, maxiter, throw, m))
    U, V = (2**0.5 * pairs.vectors.flip(-1)).split([m, n], -2)
    return SingularTriplets(U, pairs.values.flip(-1), V, pairs)
