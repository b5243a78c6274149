"""Some eigenpairs of a symmetric matrix, with derivatives of any order: the call, the choice of its method,
its results, and the data for derivatives."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from learnsolve.arguments import Count, NotNegative
from learnsolve.eigen._gradient import (
    DeflationSpace,
    Known,
    Solve,
    _no_vmap,
    attach_gradient,
    eigenpair_solver,
    minres_solver,
    shift_invert_solver,
)
from learnsolve.eigen._methods import ShiftInvert, below_all, lanczos, lobpcg, orthonormal
from learnsolve.matrix import checks
from learnsolve.matrix.cache import numbers, outside_of_graphs, plain_tensors, vmap_active
from learnsolve.matrix.checks import RealSystem
from learnsolve.matrix.csr import CSR
from learnsolve.ops.products import product
from learnsolve.ops.structure import symmetry
from learnsolve.preconditioners.base import check_finite, check_numbers
from learnsolve.solvers.core.arguments import check_symmetric, learns
from learnsolve.solvers.core.loop import users_frame
from learnsolve.solvers.core.operators import make_preconditioner
from learnsolve.solvers.solution import ConvergenceWarning, SolverError, Status


class Eigenpairs(NamedTuple):
    """Eigenvalues and eigenvectors, ``values, vectors = eigsh(A, k)[:2]``.

    Attributes
    ----------
    values : Tensor, shape (..., k), ascending, differentiable
    vectors : Tensor, shape (..., n, k), differentiable, U^T B U = I. In each column the first of the largest
        entries in magnitude (up to 0.1 %) is positive
    residual_norms : Tensor, shape (..., k), constants: ||A u - lambda B u|| / ||B u||, for B = I a bound of
        the distance to an eigenvalue
    statuses : list of `solvers.Status`, one per pair, in order for a batch
    gaps : Tensor, shape (..., k), constants: the distance to the nearest other of these values
    method : str, the method that ran: "dense", "shift-invert", "Lanczos" or "LOBPCG", and the reason
    iterations : int, products with the operator, or steps. 0 for "dense"

    Examples
    --------
    >>> import learnsolve as ls
    >>> pairs = ls.eigsh(ls.problems.poisson((8, 8)), 3)
    >>> pairs
    Eigenpairs(values=(3,), vectors=(64, 3), status=CONVERGED, method='dense: n is at most 256')
    >>> pairs.converged, bool(pairs.gaps[1] < 1e-12)  # the second and the third are equal
    (True, True)
    """

    values: Tensor
    vectors: Tensor
    residual_norms: Tensor
    statuses: list[Status]
    gaps: Tensor
    method: str
    iterations: int

    @property
    def status(self) -> Status:
        """The worst status of all pairs."""
        order = list(Status)
        return max(self.statuses, key=order.index)

    @property
    def converged(self) -> bool:
        return self.status is Status.CONVERGED

    def summary(self) -> str:
        """One paragraph for an error message."""
        bad = [i for i, status in enumerate(self.statuses) if status is not Status.CONVERGED]
        return (
            f"{self.status.name} in {len(bad)} of {len(self.statuses)} pairs, the first is {bad[:1]}, after "
            f"{self.iterations} iterations of {self.method}. Largest residual "
            f"{float(self.residual_norms.nan_to_num(torch.inf).max()):.3g}. {self.status}"
        )

    def __repr__(self) -> str:
        return (
            f"Eigenpairs(values={tuple(self.values.shape)}, vectors={tuple(self.vectors.shape)}, "
            f"status={self.status.name}, method={self.method!r})"
        )


class SingularTriplets(NamedTuple):
    """Singular values and vectors, A v = s u, A^T u = s v, from ``U, S, V = svds(A, k)[:3]``.

    Attributes
    ----------
    U : Tensor, shape (..., m, k), differentiable
    S : Tensor, shape (..., k), descending, differentiable
    V : Tensor, shape (..., n, k), differentiable, signs as for `Eigenpairs.vectors`
    pairs : Eigenpairs of the symmetric matrix used

    Examples
    --------
    >>> import torch, learnsolve as ls
    >>> A = ls.CSR.from_dense(torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]]))
    >>> ls.svds(A, 1).S
    tensor([3.])
    """

    U: Tensor
    S: Tensor
    V: Tensor
    pairs: Eigenpairs


DENSE = 256  # up to this n all pairs of the dense matrix take milliseconds


@dataclass
class Request:
    """A call of `eigsh` for one matrix, checked, with A and B detached from the autograd graph."""

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

    @property
    def methods(self) -> dict[str, Callable[[Request], Any]]:
        """Methods of its own."""
        return {}

    def choice(self) -> tuple[str, str]:
        """The method and the reason."""
        if isinstance(self.which, str) and self.method != "dense" and self.norm == 0:
            return "lobpcg", "A is zero"  # of which Lanczos's method makes no second vector
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

    def to_double(self) -> Request:
        """The request on the host in float64."""

        def move(A: CSR) -> CSR:
            return A.to("cpu", torch.float64)

        B = None if self.B is None else move(self.B)
        return replace(self, A=move(self.A), B=B)

    def sizes(self, values: Tensor, U: Tensor) -> Tensor:
        """The norms of |A| |u| + (|lambda| + s) |B| |u|, with s the smallest size of a row of A: rounding
        errors in A u - lambda B u, and in u, are a few units of roundoff of these. A huge entry in a row
        where u is tiny does not count, as it would in a norm of A. The vector s does where lambda is zero."""
        X = U.abs()
        BX = X if self.B is None else product(self.B.values.abs(), X, self.B.pattern, False)
        scale = values.abs() + self._size(self.quotients)
        return (product(self.A.values.abs(), X, self.A.pattern, False) + scale * BX).norm(dim=0)

    @functools.cached_property
    def quotients(self) -> Tensor:
        """|a_ii| / b_ii, in ascending order."""
        quotients = self.A.diagonal().abs()
        return (quotients if self.B is None else quotients / self.B.diagonal()).sort().values

    def _size(self, quotients: Tensor) -> float:
        """The first of them that is not zero."""
        positive = quotients[quotients > 0]
        return float(positive[0]) if len(positive) else self.norm

    @functools.cached_property
    def sought(self) -> float:
        """The size of the k smallest values, if A is positive semidefinite: of the k-th smallest quotient
        a_ii / b_ii, or the next that is not zero. Of the k largest: of the k-th largest, or one before."""
        return self._size(self.quotients[-self.k if self.which == "largest" else self.k - 1 :])

    @functools.cached_property
    def norm(self) -> float:
        """The size of A in the maximum norm, in units of eigenvalues."""
        ones = self.A.values.new_ones(self.A.shape[1])
        largest = float(product(self.A.values.abs(), ones, self.A.pattern, False).max())
        return largest if self.B is None else largest / max(float(self.B.diagonal().mean()), 1e-300)


class Memory:
    """Created after a solve. `solver` makes the solver in the complement when first needed."""

    def __init__(self, request: Request, pairs: Eigenpairs, solver: Callable[[DeflationSpace], Solve]):
        self.request, self.pairs, self.solver = request, pairs, solver
        values = pairs.values
        self.eps = torch.finfo(values.dtype).eps
        # The gap below which two values count as equal: half of the digits, or the effect of rounding in A.
        U = pairs.vectors
        sizes = request.sizes(values, U) / request.times_B(U).norm(dim=0)
        self.gap = torch.maximum(values.abs() * self.eps**0.5, 10 * self.eps * sizes)
        number = (values.diff(prepend=values[:1]) > torch.maximum(self.gap, self.gap.roll(1))).cumsum(0)
        self.cluster = number == number.unsqueeze(-1)
        self.solve: Solve | None = None

    def known(self) -> Known:
        A, B, pairs = self.request.A, self.request.B, self.pairs
        pattern = None if B is None else B.pattern
        rules = self._solve_deflated, self._judge, self._say
        return Known(A.pattern, pattern, pairs.values, pairs.vectors, self.cluster, *rules)

    def _solve_deflated(self, values: Tensor, R: Tensor) -> tuple[Tensor, str]:
        with torch.no_grad():
            if self.solve is None:
                # Like the eigenvectors: for LOBPCG with A's device and dtype, else on the host in float64.
                q = self.request if self.pairs.method.startswith("LOBPCG") else self.request.to_double()
                U = self.pairs.vectors.to(q.A.values)
                rtol = 1e-10 if self.eps < 1e-10 else 1e-5
                self.like, self.solve = U, self.solver(DeflationSpace(U, q.times_B(U), q.times_B, rtol))
            Y, trouble = self.solve(values.to(self.like), R.to(self.like))
            return Y.to(R), trouble

    def _say(self, text: str) -> None:
        if self.request.throw:
            raise ValueError(f"{self.request.name}: {text}")
        warnings.warn(f"{self.request.name}: {text}", RuntimeWarning, stacklevel=users_frame())

    def _judge(self, kind: str, R: Tensor, G: Tensor, Y: Tensor, trouble: str) -> None:
        """Check that a first derivative (`kind` "forward" or "reverse") is defined, and any is solved."""
        size = R.norm(dim=-2)
        cut = ~(Y.norm(dim=-2) * self.gap <= 0.1 * size) & (size > 0)  # true also for NaN
        if kind and bool(cut.any()):
            i = int(cut.reshape(-1, cut.shape[-1]).any(0).nonzero()[0])
            self._say(
                f"the derivative of vector {i} is undefined: its value {float(self.pairs.values[i]):.6g} "
                f"equals one that was not requested, to rounding, and the {cut.shape[-1]} pairs cut a "
                "cluster. Ask for more"
            )
        elif trouble:
            if self.request.throw:
                raise SolverError(self.request.name, self.pairs)  # type: ignore[arg-type]
            warnings.warn(
                f"{self.request.name}: a solve for the derivative did not converge: {trouble}",
                ConvergenceWarning,
                stacklevel=users_frame(),
            )
        if kind:
            self._judge_rotations((G - G.mT if kind == "reverse" else G).abs(), size)

    def _judge_rotations(self, turn: Tensor, size: Tensor) -> None:
        """Within a cluster, a G = U^T R that is not symmetric (a cotangent) depends on the rotation of the
        basis, and one that splits the values (a tangent) separates them: vectors have no derivative."""
        scale = self.pairs.vectors.norm(dim=0).unsqueeze(-1) * size.unsqueeze(-2)
        turns = (turn > self.eps**0.4 * torch.maximum(scale, scale.mT)) & self.cluster
        turns = turns.reshape(-1, *self.cluster.shape).any(0).triu(1)
        if bool(turns.any()):
            i, j = (int(t) for t in turns.nonzero()[0])
            first, second = float(self.pairs.values[i]), float(self.pairs.values[j])
            self._say(
                f"derivatives of single vectors are undefined in a cluster: values {i} and {j} differ by "
                f"{second - first:.2g}, {first:.6g} being one of them, and the result depends on more than "
                "the space of their vectors. Use what is invariant, U U^T or a sum, or fewer pairs"
            )


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
    values, U = values.to(like), _normalize_signs(U).to(like)
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
    larger than A is where x is not small, and at least some roundings of that."""
    eps = torch.finfo(values.dtype).eps
    rtol = request.rtol if request.rtol is not None else 1e-8 if eps < 1e-10 else 1e-4
    largest = values[: request.k].abs().max() * BX.norm(dim=0)
    sizes = request.sizes(values, X)
    return torch.maximum(rtol * torch.minimum(largest, sizes), roundings * eps * sizes)


# --- the methods: values, vectors, iterations, description, and solver in the complement ---

Found = tuple[Tensor, Tensor, int, str, Callable[[DeflationSpace], Solve]]


def _dense(request: Request) -> Found:
    q = request.to_double()
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
        lambda space: eigenpair_solver(space, others, W),
    )  # fmt: skip


def _cholesky(q: Request) -> Tensor:
    assert q.B is not None
    L, info = torch.linalg.cholesky_ex(q.B.to_dense())
    if int(info):
        raise _not_definite(q.name)
    return L


def _not_definite(name: str) -> ValueError:
    return ValueError(f"{name}: B must be positive definite, but it is not. Check its assembly")


def _arpack(request: Request) -> Found:
    q = request.to_double()
    if q.k >= q.A.shape[0]:
        raise ValueError(f'{q.name}: ARPACK needs k < n, got k = n = {q.k}. Use method="dense"')
    tol = 0.0 if q.rtol is None else 0.1 * q.rtol
    A, B = q.A.to_scipy(), None if q.B is None else q.B.to_scipy()
    if q.which == "largest":
        values, U, count = lanczos(A, B, q.k, None, None if q.B is None else _inverse_of_B(q), tol, q.maxiter)
        return values, U, count, "Lanczos", lambda space: _above(q, values, space)
    if q.which == "smallest":
        shifted = below_all(q.name, q.A, q.B, q.sought, q.norm)
    else:
        shifted = ShiftInvert(q.name, q.A, q.B, float(q.which))
    values, U, count = lanczos(A, B, q.k, shifted.sigma, shifted.solve_vector, tol, q.maxiter)
    what = f"shift-invert at {shifted.sigma:.3g}"
    values, U = _refine(q, values, U, shifted.solve_block)
    return (
        values,
        U,
        count,
        what,
        lambda space: shift_invert_solver(space, shifted.solve_block, shifted.sigma),
    )


def _refine(
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
        return ShiftInvert(q.name, q.B, None, 0.0, "cholesky").solve_vector
    except ValueError:
        raise _not_definite(q.name) from None


def _above(q: Request, values: Tensor, space: DeflationSpace) -> Solve:
    """For the largest values: MINRES or, if it is slow, a factor at a shift above all, made on demand."""

    def shift_invert() -> Solve:
        spread = float(values.max() - values.min())
        sigma = float(values.max()) + max(spread / len(values), 1e-3 * q.norm)
        return shift_invert_solver(space, ShiftInvert(q.name, q.A, q.B, sigma).solve_block, sigma)

    return minres_solver(space, q.times_A, None, 200, shift_invert)


def _lobpcg(request: Request) -> Found:
    q = request
    n, k = q.A.shape[0], q.k
    # A few more than k, since the last ones converge slowest. The same in every call.
    columns, generator = min(n, k + max(2, k // 4)), torch.Generator("cpu").manual_seed(0)
    X = torch.randn(n, columns, dtype=torch.float64, generator=generator, device="cpu")
    sign = 1 if q.which == "smallest" else -1
    M = make_preconditioner(q.name, "M", q.M, X.to(q.A.values))
    values, U, steps = lobpcg(
        lambda Y: sign * q.times_A(Y), q.times_B, M, X.to(q.A.values), k,
        lambda v, X, BX: _tolerance(q, v, X, BX, 10), 500 if q.maxiter is None else q.maxiter,
    )  # fmt: skip
    if sign < 0:
        values, U = -values.flip(0), U.flip(1)
    return values, U, steps, "LOBPCG", lambda space: minres_solver(space, q.times_A, M, 2000)


def _normalize_signs(U: Tensor) -> Tensor:
    """Normalize signs: the first of the largest entries of each column is positive."""
    size = U.abs()
    at = (size >= 0.999 * size.max(0).values).to(torch.uint8).argmax(0)
    return U * torch.where(U.gather(0, at.unsqueeze(0)) < 0, -1, 1)


def eigsh(
    A: RealSystem,
    k: Count,
    *,
    B: RealSystem | None = None,
    which: str | float = "smallest",
    M: object = None,
    method: Literal["auto", "dense", "arpack", "lobpcg"] = "auto",
    rtol: NotNegative | None = None,
    maxiter: Count | None = None,
    throw: bool = False,
) -> Eigenpairs:
    r"""k eigenpairs of a symmetric matrix, :math:`A u = \lambda B u`, :math:`u^T B u = 1`.

    Parameters
    ----------
    A : CSR, symmetric, shape (n, n), values (..., nnz), or a SciPy, torch or NumPy matrix
    k : int, 1 to n
    B : like A, symmetric positive definite. Default: the identity
    which : "smallest" or "largest" values, or a float: the values nearest to it
    M : symmetric positive definite preconditioner, M ~ A^-1, for LOBPCG: callable, CSR or LinearOperator
    method : "dense"; "arpack", SciPy's restarted Lanczos; "lobpcg"; "auto" (Notes)
    rtol : a pair has converged when :math:`\|A u - \lambda B u\| \le rtol |\lambda| \|B u\|`, where lambda is
        the largest requested value in magnitude, at most the norm of :math:`|A| |u|`, or at rounding level
        of that or of the smallest diagonal entry. Default 1e-8, 1e-4 in float32
    maxiter : int, restarts of ARPACK (default 10 n) or steps of LOBPCG (default 500)
    throw : raise `SolverError` if a pair, or a solve for a gradient, did not converge, and ValueError for an
        undefined gradient. If False, warn

    Returns
    -------
    Eigenpairs

    Raises
    ------
    ValueError, TypeError
        if arguments do not match, A is not symmetric, B not positive definite, or `which` is an eigenvalue.
    NotImplementedError
        under vmap and in graphs of `torch.compile`.

    Notes
    -----
    "auto": LOBPCG with M and on a device. Otherwise, on the host in float64, "dense" for n <= 256 or 3 k > n,
    and ARPACK on A for "largest", on :math:`(A - \sigma B)^{-1}` with a sparse factor otherwise. Further runs
    of ARPACK look for copies of multiple values that the first missed.

    Gradient: implicit, any order, reverse and forward mode, symmetric on the pattern. For values it costs a
    sampled product, for vectors also solves in the complement of all k, with the factor or MINRES with M. In
    a cluster of equal values the projector and the sum are differentiable. Single vectors, or a cluster that
    is cut at k, are not. This is detected by the gap, and a warning names the pair. See docs/eigenpairs.md.

    References
    ----------
    A. V. Knyazev, SIAM J. Sci. Comput. 23 (2001) 517-541; J. R. Magnus, Econometric Theory 1 (1985) 179-191.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((40, 40)).requires_grad_()
    >>> values, vectors = ls.eigsh(A, 3)[:2]
    >>> values
    tensor([0.0117, 0.0293, 0.0293], dtype=torch.float64, grad_fn=<_EigenBackward>)
    >>> values[0].backward()
    """
    name = "eigsh"
    _check(name, A, k, B, which, M, method)
    return compute_pairs(Request(name, A, B, k, which, M, method, rtol, maxiter, throw))


def compute_pairs(request: Request) -> Eigenpairs:
    """The pairs of each matrix of a batch, with derivatives."""
    A, B = request.A, request.B
    batch = A.batch_shape if B is None else torch.broadcast_shapes(A.batch_shape, B.batch_shape)

    def one(a: Tensor, b: Tensor | None) -> Eigenpairs:
        of_A = A.with_values(numbers(a))
        of_B = None if b is None else B.with_values(numbers(b))  # type: ignore[union-attr]
        with plain_tensors(), torch.no_grad():
            known, pairs = solve(replace(request, A=of_A, B=of_B))
        if not pairs.converged:
            report(request.name, pairs, request.throw)
        values, vectors = attach_gradient(a, a.new_empty(0) if b is None else b, known)
        return pairs._replace(values=values, vectors=vectors)

    if not batch:
        return one(A.values, None if B is None else B.values)
    a = A.values.expand(*batch, -1).flatten(0, -2)
    b = None if B is None else B.values.expand(*batch, -1).flatten(0, -2)
    made = [one(a[i], None if b is None else b[i]) for i in range(len(a))]
    stacked = {
        t: torch.stack([getattr(p, t) for p in made]).unflatten(0, batch)
        for t in ("values", "vectors", "residual_norms", "gaps")
    }
    statuses = [status for p in made for status in p.statuses]
    most = max(p.iterations for p in made)
    return made[0]._replace(**stacked, statuses=statuses, iterations=most)


eigsh = outside_of_graphs(
    eigsh,
    "eigsh: the number of steps depends on the data. Call it outside of the compiled graph, and use its "
    "results there",
)


def report(name: str, pairs: Eigenpairs, throw: bool) -> None:
    if throw:
        raise SolverError(name, pairs)  # type: ignore[arg-type]
    text = (
        f"{name}: did not converge: {pairs.status.name}. {pairs.status} (Eigenpairs.summary() has numbers.)"
    )
    warnings.warn(text, ConvergenceWarning, stacklevel=users_frame())


def _check(name: str, A: CSR, k: int, B: CSR | None, which: str | float, M: object, method: str) -> None:
    for key, matrix in (("A", A), ("B", B)):
        if matrix is None:
            continue
        check_numbers(name, matrix)
        if not matrix.values.numel() and matrix.batch_shape.numel() != 1:
            raise ValueError(
                f"{name}: {key} is an empty batch of shape {tuple(matrix.batch_shape)}. Remove it"
            )
        if vmap_active(matrix.values):
            raise _no_vmap()
        with plain_tensors():
            plain = matrix.with_values(numbers(matrix.values))
            check_finite(name, plain, key)
            if not symmetry(name, plain, None):
                raise ValueError(
                    f"{name}: {key} must be symmetric, but it is not. Pass 0.5 * ({key} + {key}.T), or use "
                    "svds for singular values"
                )
    if B is not None:
        checks.same_kind(name, "B.values", B.values, A.values)
        if B.shape != A.shape:
            raise ValueError(f"{name}: B must have A's shape {A.shape}, got {B.shape}")
        checks.batches(name, A.batch_shape, B.batch_shape, "A and B")
    n = A.shape[0]
    checks.integer(name, "k", k, 1, n)
    if isinstance(which, str):
        checks.check_choice(name, "which", which, ("smallest", "largest"))
    else:
        checks.real(name, "which", which, "finite", "'smallest', 'largest' or a number")
    if M is not None:
        check_symmetric(name, M)
        sources = (A.values,) if B is None else (A.values, B.values)
        if torch.is_grad_enabled() and learns(M, sources):
            raise ValueError(
                f"{name}: M requires grad, but eigenpairs do not depend on it. Make it of detached tensors, "
                "or call eigsh under torch.no_grad()"
            )
        if method not in ("auto", "lobpcg"):
            raise ValueError(f'{name}: M is only used by method="lobpcg", got method={method!r}. Remove M')
        if not isinstance(which, str):
            raise ValueError(
                f"{name}: M is only used by LOBPCG, which finds no values near {which}. Remove M"
            )
    elif method == "lobpcg" and not isinstance(which, str):
        raise ValueError(f'{name}: LOBPCG finds no values near {which}. Use method="arpack"')
