"""The numbers of `eigsh`: which method runs, what it found, what is known for the derivatives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learnsolve.eigen._arpack import lanczos
from learnsolve.eigen._deflated import Deflated, Solve, by_all_pairs, by_factor, by_minres
from learnsolve.eigen._gradient import Known
from learnsolve.eigen._lobpcg import lobpcg
from learnsolve.eigen._shift import Shifted, below_all
from learnsolve.eigen.eigenpairs import Eigenpairs
from learnsolve.matrix.csr import CSR
from learnsolve.ops.core.product import product
from learnsolve.solvers.core.operators import as_preconditioner
from learnsolve.solvers.core.report import users_frame
from learnsolve.solvers.solution import ConvergenceWarning, SolverError, Status

DENSE = 256  # up to this n all pairs of the dense matrix take milliseconds


@dataclass
class Request:
    """A call of `eigsh` for one matrix, checked; A and B without a graph."""

    name: str
    A: CSR
    B: CSR | None
    k: int
    which: str | float
    M: Any
    method: str
    rtol: float | None
    maxiter: int | None
    throw: bool

    def choice(self) -> tuple[str, str]:
        """The method, and why."""
        if self.method != "auto":
            return self.method, "as requested"
        if self.M is not None:
            return "lobpcg", "for M"
        n = self.A.shape[0]
        if n <= DENSE:
            return "dense", f"n is at most {DENSE}"
        if 3 * self.k > n:
            return "dense", "3 k > n"
        if not self.A.values.is_cpu and isinstance(self.which, str):
            return "lobpcg", "on a device"
        return "arpack", "on the host"

    def times_A(self, X: Tensor) -> Tensor:
        return product(self.A.values, X, self.A.pattern, False)

    def times_B(self, X: Tensor) -> Tensor:
        return X if self.B is None else product(self.B.values, X, self.B.pattern, False)

    def in_double(self) -> Request:
        """On the host in float64."""

        def moved(A: CSR) -> CSR:
            return A.to("cpu", torch.float64)

        B = None if self.B is None else moved(self.B)
        return Request(**{**vars(self), "A": moved(self.A), "B": B})

    @property
    def norm(self) -> float:
        """Of A in the maximum norm, in the units of eigenvalues."""
        ones = self.A.values.new_ones(self.A.shape[1])
        largest = float(product(self.A.values.abs(), ones, self.A.pattern, False).max())
        return largest if self.B is None else largest / max(float(self.B.diagonal().mean()), 1e-300)


def solve(request: Request) -> tuple[Known, Eigenpairs]:
    method, why = request.choice()
    if request.B is not None and not bool((request.B.diagonal() > 0).all()):
        raise _not_definite(request.name)
    run = {"dense": _dense, "arpack": _arpack, "lobpcg": _lobpcg}[method]
    values, U, iterations, what, solver = run(request)
    like = request.A.values
    values, U = values.to(like), _signed(U).to(like)
    BU = request.times_B(U)
    if request.B is not None and bool(((U * BU).sum(0) - 1).abs().max() > 0.1):  # NaN: other reasons
        raise _not_definite(request.name)
    lengths = BU.norm(dim=0)
    residuals = (request.times_A(U) - BU * values).norm(dim=0) / lengths
    limit = _tolerance(request, values, BU) / lengths
    if method != "lobpcg":  # in float64 on the host
        limit = torch.maximum(limit, 100 * torch.finfo(like.dtype).eps * request.norm * torch.ones_like(limit))
    statuses = [
        Status.CONVERGED if ok else Status.MAX_ITERATIONS if finite or method == "arpack" else Status.NON_FINITE
        for ok, finite in zip((residuals <= limit).tolist(), residuals.isfinite().tolist(), strict=True)
    ]
    apart = (values - values.unsqueeze(-1)).abs().fill_diagonal_(torch.inf)
    pairs = Eigenpairs(values, U, residuals, statuses, apart.min(0).values, f"{what}: {why}", iterations)
    known = _known(request, values, U, solver, pairs)
    return known, pairs


def _tolerance(request: Request, values: Tensor, BX: Tensor) -> Tensor:
    eps = torch.finfo(values.dtype).eps
    rtol = request.rtol if request.rtol is not None else 1e-8 if eps < 1e-10 else 1e-4
    return max(rtol * float(values.abs().max()), 10 * eps * request.norm) * BX.norm(dim=0)


# --- the methods: values, vectors, iterations, what it is, and what solves in the complement ---

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
        chosen = torch.arange(k) + (0 if q.which == "smallest" else len(values) - k)
    else:
        chosen = (values - q.which).abs().argsort(stable=True)[:k].sort().values
    rest = torch.ones(len(values), dtype=torch.bool).index_fill(0, chosen, False)
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
        shifted = below_all(q.name, q.A, q.B, q.norm)
    else:
        shifted = Shifted(q.name, q.A, q.B, float(q.which))
    values, U, count = lanczos(A, B, q.k, shifted.sigma, shifted.on_vector, tol, q.maxiter)
    what = f"shift-invert at {shifted.sigma:.3g}"
    return values, U, count, what, lambda space: by_factor(space, shifted.on_block, shifted.sigma)


def _inverse_of_B(q: Request) -> Callable[[Any], Any]:
    assert q.B is not None
    try:
        return Shifted(q.name, q.B, None, 0.0, "cholesky").on_vector
    except ValueError:
        raise _not_definite(q.name) from None


def _above(q: Request, values: Tensor, space: Deflated) -> Solve:
    """For the largest: MINRES, and where it is slow a factor at a shift above all, made when it is needed."""

    def factored() -> Solve:
        spread = float(values.max() - values.min())
        sigma = float(values.max()) + max(spread / len(values), 1e-3 * q.norm)
        return by_factor(space, Shifted(q.name, q.A, q.B, sigma).on_block, sigma)

    return by_minres(space, q.times_A, None, 200, factored)


def _lobpcg(request: Request) -> Found:
    q = request
    n, k = q.A.shape[0], q.k
    # A few more than k: the last ones converge slowest. The same in every call.
    columns, generator = min(n, k + max(2, k // 4)), torch.Generator("cpu").manual_seed(0)
    X = torch.randn(n, columns, dtype=torch.float64, generator=generator, device="cpu")
    sign = 1 if q.which == "smallest" else -1
    M = as_preconditioner(q.name, "M", q.M, X.to(q.A.values))
    values, U, steps = lobpcg(
        lambda Y: sign * q.times_A(Y), q.times_B, M, X.to(q.A.values), k,
        lambda v, BX: _tolerance(q, v, BX), 500 if q.maxiter is None else q.maxiter,
    )  # fmt: skip
    if sign < 0:
        values, U = -values.flip(0), U.flip(1)
    return values, U, steps, "LOBPCG", lambda space: by_minres(space, q.times_A, M, 2000)


# --- what the derivatives know ---


def _signed(U: Tensor) -> Tensor:
    """With the first of the largest entries of each column positive."""
    size = U.abs()
    at = (size >= 0.999 * size.max(0).values).to(torch.uint8).argmax(0)
    return U * U.gather(0, at.unsqueeze(0)).sign().where(U.new_ones(()).bool(), U.new_ones(()))


def _known(
    request: Request, values: Tensor, U: Tensor, solver: Callable[[Deflated], Solve], pairs: Eigenpairs
) -> Known:
    eps = torch.finfo(values.dtype).eps
    floor = 10 * eps * request.norm
    close = torch.maximum(values[1:].abs(), values[:-1].abs()) * eps**0.5
    close = torch.cat((values.new_zeros(1), close)).clamp(min=floor)
    number = (values.diff(prepend=values[:1]) > close).cumsum(0)
    cluster = number == number.unsqueeze(-1)
    inner: list[Solve] = []

    def deflated(at: Tensor, R: Tensor) -> tuple[Tensor, str]:
        with torch.no_grad():
            # As the eigenvectors: those of the dense and the factored methods were found in float64.
            q = request.in_double() if pairs.method[:6] != "LOBPCG" else request
            V = U.to(q.A.values)
            if not inner:
                inner.append(solver(Deflated(V, q.times_B(V), q.times_B, 1e-10 if eps < 1e-10 else 1e-5)))
            Y, trouble = inner[0](at.to(V), R.to(V))
            return Y.to(R), trouble

    def say(text: str) -> None:
        if request.throw:
            raise ValueError(f"{request.name}: {text}")
        warnings.warn(f"{request.name}: {text}", RuntimeWarning, stacklevel=users_frame())

    def judge(kind: str, R: Tensor, G: Tensor, Y: Tensor, trouble: str) -> None:
        scale = R.norm(dim=-2)
        cut = (Y.norm(dim=-2) * torch.maximum(values.abs() * eps**0.5, values.new_tensor(floor)) > 0.1 * scale)
        cut = cut & (scale > 0)
        if kind and bool(cut.any()):
            i = int(cut.reshape(-1, len(values)).any(0).nonzero()[0])
            say(
                f"the derivative of vector {i} is undefined: its value {float(values[i]):.6g} equals one that "
                f"was not requested, to rounding, and the {len(values)} pairs cut a cluster; ask for more"
            )
        elif trouble:
            if request.throw:
                raise SolverError(request.name, pairs)  # type: ignore[arg-type]
            warnings.warn(
                f"{request.name}: a solve for the derivative did not converge: {trouble}",
                ConvergenceWarning,
                stacklevel=users_frame(),
            )
        if not kind:
            return
        turn = (G - G.mT if kind == "reverse" else G).abs()
        off = cluster & ~torch.eye(len(values), dtype=torch.bool, device=cluster.device)
        size = U.norm(dim=0).unsqueeze(-1) * scale.unsqueeze(-2)
        turns = off & (turn > eps**0.4 * torch.maximum(size, size.mT))
        if bool(turns.any()):
            j, i = (int(t) for t in turns.reshape(-1, *off.shape).any(0).nonzero()[0])
            i, j = min(i, j), max(i, j)
            gap = abs(float(values[i] - values[j]))
            say(
                f"derivatives of single vectors are undefined in a cluster: values {i} and {j} differ by "
                f"{gap:.2g}, {float(values[i]):.6g} being one of them, and the result depends on more than "
                "the space of their vectors; use what is invariant, U U^T or a sum, or fewer pairs"
            )

    return Known(
        request.A.pattern, None if request.B is None else request.B.pattern, values, U, cluster, deflated, judge
    )
