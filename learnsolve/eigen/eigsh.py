"""Some eigenpairs of a symmetric matrix, with derivatives of any order."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from learnsolve.eigen._gradient import _no_vmap, attached
from learnsolve.eigen._solve import Request, solve
from learnsolve.eigen.eigenpairs import Eigenpairs
from learnsolve.matrix import checks, inputs
from learnsolve.matrix.plain import numbers, outside_of_graphs, plain_tensors
from learnsolve.ops.core.symmetry import symmetry
from learnsolve.preconditioners.base import check_finite, check_numbers
from learnsolve.solvers.core.arguments import _learns, check_symmetric
from learnsolve.solvers.core.gradient import mapped
from learnsolve.solvers.core.report import users_frame
from learnsolve.solvers.solution import ConvergenceWarning, SolverError

METHODS = ("auto", "dense", "arpack", "lobpcg")


def eigsh(
    A: Any,
    k: int,
    *,
    B: Any = None,
    which: str | float = "smallest",
    M: Any = None,
    method: str = "auto",
    rtol: float | None = None,
    maxiter: int | None = None,
    throw: bool = False,
) -> Eigenpairs:
    r"""k eigenpairs of a symmetric matrix, :math:`A u = \lambda B u`, :math:`u^T B u = 1`.

    Parameters
    ----------
    A : CSR, symmetric, shape (n, n), values (..., nnz); or a SciPy, torch or NumPy matrix
    k : int, 1 to n
    B : like A, symmetric positive definite; default: the identity
    which : "smallest" or "largest" values; or a float: the values nearest to it
    M : symmetric positive definite preconditioner, M ~ A^-1, for LOBPCG: callable, CSR or LinearOperator
    method : "dense"; "arpack", SciPy's restarted Lanczos; "lobpcg"; "auto" (Notes)
    rtol : a pair has converged when :math:`\|A u - \lambda B u\| \le rtol |\lambda| \|B u\|`, where lambda is
        the largest requested value in magnitude, at most the norm of :math:`|A| |u|`, or at rounding level
        of that or of the smallest diagonal entry; default 1e-8, 1e-4 in float32
    maxiter : int, restarts of ARPACK (default 10 n) or steps of LOBPCG (default 500)
    throw : raise `SolverError` if a pair, or a solve for a gradient, did not converge, and ValueError for an
        undefined gradient; otherwise warn

    Returns
    -------
    Eigenpairs

    Raises
    ------
    ValueError, TypeError
        if arguments are invalid, A is not symmetric, B not positive definite, or `which` is an eigenvalue.
    NotImplementedError
        under vmap and in graphs of `torch.compile`.

    Notes
    -----
    "auto": LOBPCG with M and on a device; else, on the host in float64, "dense" for n <= 256 or 3 k > n, and
    ARPACK on A for "largest", on :math:`(A - \sigma B)^{-1}` with a sparse factor otherwise. Further runs of
    ARPACK look for copies of multiple values that the first missed.

    Gradient: implicit, any order, reverse and forward mode; symmetric on the pattern. For values it costs a
    sampled product, for vectors also solves in the complement of all k, with the factor or MINRES with M. In
    a cluster of equal values the projector and the sum are differentiable; single vectors, or a cluster that
    is cut at k, are not: this is detected by the gap, and a warning names the pair. See docs/eigenpairs.md.

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
    A, B = inputs.matrix(A), None if B is None else inputs.matrix(B)
    _check(name, A, k, B, which, M, method, rtol, maxiter, throw)
    return computed(Request(name, A, B, k, which, M, method, rtol, maxiter, throw))


def computed(request: Request) -> Eigenpairs:
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
        values, vectors = attached(a, a.new_empty(0) if b is None else b, known)
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
    "eigsh: the number of steps depends on the data; call it outside of the graph, and use its results there",
)


def report(name: str, pairs: Eigenpairs, throw: bool) -> None:
    if throw:
        raise SolverError(name, pairs)  # type: ignore[arg-type]
    text = (
        f"{name}: did not converge: {pairs.status.name}. {pairs.status} (Eigenpairs.summary() has numbers.)"
    )
    warnings.warn(text, ConvergenceWarning, stacklevel=users_frame())


def _check(
    name: str, A: Any, k: Any, B: Any, which: Any, M: Any, method: Any, rtol: Any, maxiter: Any, throw: Any
) -> None:
    for key, matrix in (("A", A), ("B", B)):
        if key == "B" and B is None:
            continue
        checks.matrix(name, key, matrix)
        checks.dtype(name, f"{key}.values", matrix.values)
        checks.square(name, key, matrix.shape)
        check_numbers(name, matrix)
        if not matrix.values.numel() and matrix.batch_shape.numel() != 1:
            raise ValueError(
                f"{name}: {key} is an empty batch of shape {tuple(matrix.batch_shape)}; leave it out"
            )
        if mapped(matrix.values):
            raise _no_vmap()
        with plain_tensors():
            plain = matrix.with_values(numbers(matrix.values))
            check_finite(name, plain, key)
            if not symmetry(name, plain, None):
                raise ValueError(
                    f"{name}: {key} must be symmetric, and it is not; pass 0.5 * ({key} + {key}.T), or use "
                    "svds for singular values"
                )
    if B is not None:
        checks.same_kind(name, "B.values", B.values, A.values)
        if B.shape != A.shape:
            raise ValueError(f"{name}: B must have A's shape {A.shape}, got {B.shape}")
        checks.batches(name, A.batch_shape, B.batch_shape, "A and B")
    n = A.shape[0]
    if checks.integer(name, "k", k, 1) > n:
        raise ValueError(f"{name}: k must be at most n = {n}, got {k}")
    if isinstance(which, str):
        checks.one_of(name, "which", which, ("smallest", "largest"))
    else:
        checks.real(name, "which", which, "finite", "'smallest', 'largest' or a number")
    checks.one_of(name, "method", method, METHODS)
    if rtol is not None:
        checks.tolerance(name, "rtol", rtol)
    if maxiter is not None:
        checks.integer(name, "maxiter", maxiter, 1)
    checks.flag(name, "throw", throw)
    if M is not None:
        check_symmetric(name, M)
        sources = (A.values,) if B is None else (A.values, B.values)
        if torch.is_grad_enabled() and _learns(M, sources):
            raise ValueError(
                f"{name}: M requires grad, but eigenpairs do not depend on it; make it of detached tensors, "
                "or call eigsh under torch.no_grad()"
            )
        if method not in ("auto", "lobpcg"):
            raise ValueError(f'{name}: M belongs to method="lobpcg", got method={method!r}; leave M out')
        if not isinstance(which, str):
            raise ValueError(f"{name}: M belongs to LOBPCG, which finds no values near {which}; leave M out")
    elif method == "lobpcg" and not isinstance(which, str):
        raise ValueError(f'{name}: LOBPCG finds no values near {which}; use method="arpack"')
