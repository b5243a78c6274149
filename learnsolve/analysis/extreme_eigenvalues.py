"""The smallest and the largest eigenvalue of A, or of M A, by Lanczos's method.

Source: Parlett, "The Symmetric Eigenvalue Problem" (1998), chapter 13.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from learnsolve.analysis._estimate import warn, with_derivative
from learnsolve.analysis._lanczos import Ends, lanczos
from learnsolve.analysis._operands import constant, linear, space_of, with_batch_of
from learnsolve.matrix import checks
from learnsolve.ops.core.autograd import tracked
from learnsolve.solvers.core.arguments import check_symmetric
from learnsolve.solvers.core.operators import as_operator, as_preconditioner


class ExtremeEigenvalues(NamedTuple):
    """The result of `extreme_eigenvalues`.

    Attributes
    ----------
    smallest, largest : Tensor, shape () or the batch shape, differentiable
    errors : Tensor, shape (..., 2), constants: an eigenvalue lies within this distance of smallest and of
        largest
    steps : int, number of Lanczos steps, the largest of a batch
    converged : bool, whether all errors are within rtol of the eigenvalue (or at rounding level)

    Examples
    --------
    >>> import learnsolve as ls
    >>> smallest, largest, errors, steps, converged = ls.analysis.extreme_eigenvalues(ls.ops.eye(9) * 3.0)
    >>> smallest, largest, converged
    (tensor(3., dtype=torch.float64), tensor(3., dtype=torch.float64), True)
    """

    smallest: Tensor
    largest: Tensor
    errors: Tensor
    steps: int
    converged: bool


def extreme_eigenvalues(
    A: Any,
    M: Any = None,
    *,
    steps: int = 200,
    rtol: float | None = None,
    n: int | None = None,
    dtype: torch.dtype | None = None,
) -> ExtremeEigenvalues:
    r"""The extreme eigenvalues of a symmetric A, or of M A with a symmetric positive definite M.

    Parameters
    ----------
    A : CSR, values (..., nnz), or StencilOperator, shape (n, n); or a scipy.sparse.linalg.LinearOperator; or
        a callable on blocks of columns (n, k)
    M : a preconditioner: Preconditioner, CSR, LinearOperator, or callable on blocks of columns
    steps : int, maximum number of Lanczos steps
    rtol : stop when both errors are at most rtol times the eigenvalue; default 1e-6, 1e-3 in float32
    n, dtype : size and dtype (default float64) of a callable A

    Returns
    -------
    ExtremeEigenvalues

    Raises
    ------
    ValueError, TypeError
        if arguments are invalid, A or M is not symmetric, or M not positive definite.
    RuntimeWarning
        (a warning) if `steps` is too small, or a product is not finite (the values are NaN).

    Notes
    -----
    Lanczos's method with the same start vector in every call; docs/gradients.md has the method, its error
    bounds and its derivative: first order, reverse and forward mode, with respect to A and M. Second
    derivatives raise. Deterministic with the same number of threads. Cost: k steps take k products with A and
    with M and :math:`4 k^2 n` flops, k about :math:`\sqrt{\kappa}` times a logarithm; the backward costs as
    much as that of one product.

    Examples
    --------
    >>> import learnsolve as ls
    >>> A = ls.problems.poisson((15, 15))
    >>> ends = ls.analysis.extreme_eigenvalues(A)
    >>> ends.smallest, ends.largest, ends.converged
    (tensor(0.0769, dtype=torch.float64), tensor(7.9231, dtype=torch.float64), True)
    >>> exact = ls.problems.PROPERTIES["poisson"].eigenvalues((15, 15))
    >>> bool(abs(ends.smallest - exact[0]) <= ends.errors[0])
    True
    """
    name = "extreme_eigenvalues"
    return _extreme(name, A, M, steps, rtol, n, dtype)


def _extreme(
    name: str,
    A: Any,
    M: Any,
    steps: int,
    rtol: float | None,
    n: int | None,
    dtype: torch.dtype | None,
) -> ExtremeEigenvalues:
    space = space_of(name, "A", A, n, dtype)
    steps = checks.integer(name, "steps", steps, 1)
    if rtol is None:
        rtol = 1e-6 if space.dtype == torch.float64 else 1e-3
    checks.tolerance(name, "rtol", rtol)
    space = with_batch_of(name, space, M)
    start = space.for_all(space.start())
    operator = as_operator(name, A, start, None, (), symmetric=True)
    linear(name, "M A", M)
    check_symmetric(name, M)
    precondition = as_preconditioner(name, "M", M, start)
    results = lanczos(
        name,
        constant(name, operator),
        None if precondition is None else constant(name, precondition),
        space,
        min(steps, space.n),
        rtol,
    )
    for i, ends in enumerate(results):
        _report(name, space.which(i), ends, rtol)
    nan, inf = space.numbers(torch.nan, torch.nan), space.numbers(torch.inf, torch.inf)
    values = torch.stack([nan if e is None else e.theta for e in results]).reshape(*space.batch, 2)
    errors = torch.stack([inf if e is None else e.error for e in results]).reshape(*space.batch, 2)
    known = [e for e in results if e is not None]
    taken = max((e.steps for e in known), default=0)
    converged = len(known) == len(results) and all(e.converged for e in known)
    if known:
        zero = torch.zeros_like(known[0].u)  # for matrices without a result
        shape = (*space.batch, *zero.shape)
        u, z = (
            torch.stack([zero if e is None else getattr(e, name) for e in results]).reshape(shape)
            for name in ("u", "z")
        )
        form = (u * operator(u)).sum(-2)
        if precondition is not None:
            form = form + values * (z * precondition(z)).sum(-2)
        if tracked(form):
            values = with_derivative(name, values, form)
    return ExtremeEigenvalues(values[..., 0], values[..., 1], errors, taken, converged)


def _report(name: str, which: str, ends: Ends | None, rtol: float) -> None:
    if ends is None:
        warn(
            name,
            f"{which}products with A or M have infinities or NaNs, so the eigenvalues are NaN without a "
            "gradient; check the entries of A and M",
        )
    elif not ends.converged:
        low, high = ends.theta.tolist()
        warn(
            name,
            f"{which}after {ends.steps} steps, {low:.4g} and {high:.4g} may be off by {ends.error[0]:.2g} "
            f"and {ends.error[1]:.2g}, more than rtol = {rtol:.2g} allows; allow more steps or a larger rtol",
        )
