"""The solve of `eigsh`: the method, its results, and the data for derivatives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learnsolve.eigen._arpack import lanczos
from learnsolve.eigen._basis import orthonormal
from learnsolve.eigen._deflated import Deflated, Solve, by_all_pairs, by_factor, by_minres
from learnsolve.eigen._gradient import Known
from learnsolve.eigen._lobpcg import lobpcg
from learnsolve.eigen._memory import Memory
from learnsolve.eigen._request import Request
from learnsolve.eigen._shift import Shifted, below_all
from learnsolve.eigen.eigenpairs import Eigenpairs
from learnsolve.solvers.core.operators import as_preconditioner
from learnsolve.solvers.solution import Status


def solve(request: Request) -> tuple[Known, Eigenpairs]:
    if request.B is not None and not bool((request.B.diagonal() > 0).all()):
        raise _not_definite(request.name)
    method, why = request.choice()
    made = _solve(request, method, why)
    small = method == "dense" and request.method == "auto" and request.k < request.A.shape[0]
    if small and not made[1].converged:
        why = "all pairs of the dense matrix are less accurate"
        with contextlib.suppress(ValueError):  # no shift is known, or it is an eigenvalue
            again = _solve(request, "arpack", why)
            if again[1].statuses.count(Status.CONVERGED) > made[1].statuses.count(Status.CONVERGED):
                return again
    return made


def _solve(request: Request, method: str, why: str) -> tuple[Known, Eigenpairs]:
    run = {"dense": _dense, "arpack": _arpack, "lobpcg": _lobpcg, **request.methods}[method]
    values, U, iterations, what, solver = run(request)
    like = request.A.values
    values, U = values.to(like), _signed(U).to(like)
    BU = request.times_B(U)
    squares = (U * BU).sum(0)  # NaN has other reasons, and where LOBPCG fails they may be less than 1
    off = (squares <= 0) | ((squares - 1).abs() > 0.1) & (method != "lobpcg")
    if request.B is not None and bool(off.any()):
        raise _not_definite(request.name)
    lengths = BU.norm(dim=0)
    residuals = (request.times_A(U) - BU * values).norm(dim=0) / lengths
    # Dense and factored methods run in float64 on the host, to the end: what is left is rounding.
    limit = _tolerance(request, values, U, BU, 10 if method == "lobpcg" else 100) / lengths
    # ARPACK returns no pair if it did not converge, NaN, and then others may not be among those asked for.
    undone = residuals.isfinite() if method == "lobpcg" else U.isnan().any() & (method == "arpack")
    rounding = residuals.isfinite() & ~undone
    codes = torch.where(residuals <= limit, 0, torch.where(undone, 1, torch.where(rounding, 2, 3)))
    ends = (Status.CONVERGED, Status.MAX_ITERATIONS, Status.STAGNATED, Status.NON_FINITE)
    statuses = [ends[code] for code in codes.tolist()]
    apart = (values - values.unsqueeze(-1)).abs().fill_diagonal_(torch.inf)
    pairs = Eigenpairs(values, U, residuals, statuses, apart.min(0).values, f"{what}: {why}", iterations)
    return Memory(request, pairs, solver).known(), pairs


def _tolerance(request: Request, values: Tensor, X: Tensor, BX: Tensor, roundings: int) -> Tensor:
    """Of ||A x - lambda B x||: rtol |lambda| ||B x||, lambda the largest of the k values in magnitude, but no
    larger than A is where x is not small; at least some roundings of that."""
    eps = torch.finfo(values.dtype).eps
    rtol = request.rtol if request.rtol is not None else 1e-8 if eps < 1e-10 else 1e-4
    largest = values[: request.k].abs().max() * BX.norm(dim=0)
    sizes = request.sizes(values, X)
    return torch.maximum(rtol * torch.minimum(largest, sizes), roundings * eps * sizes)


# --- the methods: values, vectors, iterations, description, and solver in the complement ---

Found = tuple[Tensor, Tensor, int, str, Callable[[Deflated], Solve]]


def _dense(request: Request) -> Found:
    q = request.in_double()
    A, k = q.A.to_dense(), q.k
    if q.B is None:
        values, V = torch.linalg.eigh(A)
    else:
        L = _cholesky(q)
        left = torch.linalg.solve_triangular(L, A, upper=False)
        values, V = torch.linalg.eigh(torch.linalg.solve_triangular(L, left.mT, upper=False))
        V = torch.linalg.solve_triangular(L.mT, V, upper=True)
    if isinstance(q.which, str):
        chosen = torch.arange(k, device=values.device) + (0 if q.which == "smallest" else len(values) - k)
    else:
        chosen = (values - q.which).abs().argsort(stable=True)[:k].sort().values
    rest = torch.ones_like(values, dtype=torch.bool).index_fill(0, chosen, False)
    others, W = values[rest], V[:, rest]
    return (
        values[chosen], V[:, chosen], 0, "dense",
        lambda space: by_all_pairs(space, others, W),
    )  # fmt: skip


def _cholesky(q: Request) -> Tensor:
    assert q.B is not None
    L, info = torch.linalg.cholesky_ex(q.B.to_dense())
    if int(info):
        raise _not_definite(q.name)
    return L


def _not_definite(name: str) -> ValueError:
    return ValueError(f"{name}: B must be positive definite, and it is not; check its assembly")


def _arpack(request: Request) -> Found:
    q = request.in_double()
    if q.k >= q.A.shape[0]:
        raise ValueError(f'{q.name}: ARPACK needs k < n, got k = n = {q.k}; use method="dense"')
    tol = 0.0 if q.rtol is None else 0.1 * q.rtol
    A, B = q.A.to_scipy(), None if q.B is None else q.B.to_scipy()
    if q.which == "largest":
        values, U, count = lanczos(A, B, q.k, None, None if q.B is None else _inverse_of_B(q), tol, q.maxiter)
        return values, U, count, "Lanczos", lambda space: _above(q, values, space)
    if q.which == "smallest":
        shifted = below_all(q.name, q.A, q.B, q.sought, q.norm)
    else:
        shifted = Shifted(q.name, q.A, q.B, float(q.which))
    values, U, count = lanczos(A, B, q.k, shifted.sigma, shifted.on_vector, tol, q.maxiter)
    what = f"shift-invert at {shifted.sigma:.3g}"
    values, U = _refined(q, values, U, shifted.on_block)
    return values, U, count, what, lambda space: by_factor(space, shifted.on_block, shifted.sigma)


def _refined(
    q: Request, values: Tensor, U: Tensor, inverse: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """One step of subspace iteration, if it helps: where A - sigma B is almost singular, the Krylov space has
    rounding errors relative to the norm of its inverse, also in the vectors of other values."""

    def worst(values: Tensor, U: Tensor) -> float:
        R = q.times_A(U) - q.times_B(U) * values
        return float((R.norm(dim=0) / q.sizes(values, U)).max())

    before = worst(values, U)
    if not before > 100 * torch.finfo(U.dtype).eps:  # true also for NaN
        return values, U
    X = orthonormal(inverse(q.times_B(U)), q.times_B)[0]
    ritz, C = torch.linalg.eigh(X.mT @ q.times_A(X))
    return (ritz, X @ C) if X.shape == U.shape and worst(ritz, X @ C) < before else (values, U)


def _inverse_of_B(q: Request) -> Callable[[Any], Any]:
    assert q.B is not None
    try:
        return Shifted(q.name, q.B, None, 0.0, "cholesky").on_vector
    except ValueError:
        raise _not_definite(q.name) from None


def _above(q: Request, values: Tensor, space: Deflated) -> Solve:
    """For the largest values: MINRES or, if it is slow, a factor at a shift above all, made on demand."""

    def factored() -> Solve:
        spread = float(values.max() - values.min())
        sigma = float(values.max()) + max(spread / len(values), 1e-3 * q.norm)
        return by_factor(space, Shifted(q.name, q.A, q.B, sigma).on_block, sigma)

    return by_minres(space, q.times_A, None, 200, factored)


def _lobpcg(request: Request) -> Found:
    q = request
    n, k = q.A.shape[0], q.k
    # A few more than k, since the last ones converge slowest. The same in every call.
    columns, generator = min(n, k + max(2, k // 4)), torch.Generator("cpu").manual_seed(0)
    X = torch.randn(n, columns, dtype=torch.float64, generator=generator, device="cpu")
    sign = 1 if q.which == "smallest" else -1
    M = as_preconditioner(q.name, "M", q.M, X.to(q.A.values))
    values, U, steps = lobpcg(
        lambda Y: sign * q.times_A(Y), q.times_B, M, X.to(q.A.values), k,
        lambda v, X, BX: _tolerance(q, v, X, BX, 10), 500 if q.maxiter is None else q.maxiter,
    )  # fmt: skip
    if sign < 0:
        values, U = -values.flip(0), U.flip(1)
    return values, U, steps, "LOBPCG", lambda space: by_minres(space, q.times_A, M, 2000)


def _signed(U: Tensor) -> Tensor:
    """Normalize signs: the first of the largest entries of each column is positive."""
    size = U.abs()
    at = (size >= 0.999 * size.max(0).values).to(torch.uint8).argmax(0)
    return U * torch.where(U.gather(0, at.unsqueeze(0)) < 0, -1, 1)
